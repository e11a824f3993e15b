"""The conversion at the start of a run: edits see the first batch, the checks after them a few of its examples."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import normless as nl
from normless.models import wide_resnet
from normless_lab.train import ImageTask, TrainConfig

FEW, WHOLE = 8, 48

NETS = """
import torch
from normless.models import wide_resnet

SEEN = []


class Counting(torch.nn.Module):
    def forward(self, x):
        # What traces the network has tensors of other classes.
        if type(x) is torch.Tensor and x.device.type == "cpu":
            SEEN.append(len(x))
        return x


def net(classes=10, in_channels=1):
    network = wide_resnet(depth=10, width=1, classes=classes, in_channels=in_channels)
    return torch.nn.Sequential(Counting(), network)
"""


def seen_by(scheme: str, folder: Path) -> set[int]:
    """The numbers of examples of all passes with values while the network of a run is built."""
    file = folder / "counting_nets.py"
    file.write_text(NETS)
    config = TrainConfig(model=f"{file}:net", scheme=scheme, data="digits", batch_size=WHOLE, device="cpu")
    network = ImageTask(config).build_network()
    return set(sys.modules[type(network[0]).__module__].SEEN)  # type: ignore[index]


@pytest.mark.parametrize(
    ("scheme", "most"),
    [
        ("fixup", FEW),
        ("lsuv", WHOLE),
        ("none + LSUV(tolerance=0.1)", WHOLE),
    ],
)
def test_a_scheme_that_calibrates_alone_sees_the_whole_batch(scheme: str, most: int, tmp_path: Path) -> None:
    seen = seen_by(scheme, tmp_path)
    assert seen
    assert max(seen) <= most
    assert most == FEW or WHOLE in seen


@pytest.mark.parametrize("scheme", ["fixup", "lsuv"])
def test_what_is_converted_does_not_depend_on_what_is_checked(scheme: str) -> None:
    images = torch.randn(WHOLE, 3, 8, 8)
    states = []
    for few in (None, images[:FEW], {"input": images[:2]}):
        torch.manual_seed(0)
        network = wide_resnet(depth=10, width=1)
        states.append(nl.convert(network, scheme, images, check_inputs=few).state_dict())
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(value, states[0][name]) for name, value in state.items())
