"""The example of private training, on a handful of digits."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torchvision.models import resnet18

import normless as nl

pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'normless[private]'")

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    # Opacus bounds its search for the noise by a coarser accountant, which warns at small data sets.
    pytest.mark.filterwarnings("ignore:Optimal order is"),
]

SCRIPT = Path(__file__).parents[2] / "examples" / "private_digits.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("private_digits", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["private_digits"] = module
    spec.loader.exec_module(module)
    return module


def test_the_digits_keep_their_pixels(example: ModuleType) -> None:
    from sklearn.datasets import load_digits

    train, test = example.private_digits()
    assert train.inputs.shape == (1437, 3, 32, 32)
    found = torch.cat([train.inputs, test.inputs])[:, 1, ::4, ::4].flatten(1).mean(1)
    expected = torch.from_numpy(load_digits().images).float().flatten(1).mean(1) / 8 - 1
    # The order is another, and bytes hold the 17 stored values to half of 1/255.
    assert (found.sort().values - expected.sort().values).abs().max() < 1 / 255


@pytest.mark.slow
def test_it_trains_both_networks_within_the_budget(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--examples 16 --epochs 1 --batch-size 4 --physical-batch 4 --epsilon 3"
    monkeypatch.setattr(sys, "argv", ["private_digits.py", *arguments.split()])
    example.main()
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("|")][2:]
    assert [row[0].strip() for row in rows] == list(example.METHODS)
    for row in rows:
        assert 0 < float(row[1]) <= 3
        assert 0 <= float(row[2].strip().removesuffix("%")) <= 100
    multiplier = rows[0][4].strip()
    assert float(multiplier) > 0


@pytest.mark.parametrize("normalized", [False, True])
def test_neither_network_mixes_examples(example: ModuleType, normalized: bool) -> None:
    train, _ = example.private_digits(4)
    method = list(example.METHODS)[normalized]
    net = example.METHODS[method](resnet18(num_classes=10), train.inputs).train()
    assert any("Norm" in type(module).__name__ for module in net.modules()) == normalized
    assert not nl.mixes_examples(net, train.inputs)
