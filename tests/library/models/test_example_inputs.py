"""Networks named by text come with inputs they run on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from normless.models._spec import build_model, build_with_inputs


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("normless:wide_resnet(depth=10, in_channels=1)", (2, 1, 32, 32)),
        ("normless:dense(depth=1, width=4, in_features=30)", (2, 30)),
        ("timm:resnet10t", (2, 3, 176, 176)),
        ("timm:test_resnet(in_chans=1)", (2, 1, 160, 160)),
        ("timm:test_vit(img_size=(64, 96))", (2, 3, 64, 96)),
    ],
)
def test_inputs_have_the_shape_that_the_network_is_made_for(spec: str, shape: tuple[int, ...]) -> None:
    model, inputs = build_with_inputs(spec)
    assert isinstance(inputs, Tensor)
    assert tuple(inputs.shape) == shape
    assert inputs.std().item() == pytest.approx(1, rel=0.2)
    with torch.no_grad():
        assert model.eval()(inputs).shape[0] == 2


def test_a_file_may_return_its_inputs(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "def alone():\n    return nn.Linear(4, 1)\n"
        "def several():\n    return nn.Bilinear(4, 3, 1), (torch.ones(2, 4), torch.ones(2, 3))\n"
        "def named():\n    return nn.Linear(4, 1), {'input': torch.ones(2, 4)}\n"
        "def listed():\n    return nn.Linear(4, 1), [torch.ones(2, 4)]\n"
        "def three():\n    return nn.Linear(4, 1), 1, 2\n"
    )
    assert build_with_inputs(f"{file}:alone")[1].shape == (2, 3, 32, 32)  # type: ignore[union-attr]
    model, inputs = build_with_inputs(f"{file}:several")
    assert isinstance(inputs, tuple)
    assert model(*inputs).shape == (2, 1)
    model, inputs = build_with_inputs(f"{file}:named")
    assert isinstance(inputs, dict)
    assert model(**inputs).shape == (2, 1)
    assert isinstance(build_model(f"{file}:named"), torch.nn.Linear)
    with pytest.raises(ValueError, match="returned inputs of type list, expected a tensor, a tuple of positional"):
        build_with_inputs(f"{file}:listed")
    with pytest.raises(ValueError, match="object of type tuple"):
        build_model(f"{file}:three")
