"""The benchmarks measure what they say: the rival is the same function, and every network gets its turns."""

from __future__ import annotations

import json

import pytest
import torch
from command_outputs import check_output

from normless import convert
from normless.cli import main
from normless.models import resnet_cifar, wide_resnet
from normless_lab.bench._step import Bare, HandWrittenFixup, StepBench, measure_memory

IMAGES = torch.randn(4, 3, 8, 8, dtype=torch.float64)


def test_the_hand_written_rival_is_fixup() -> None:
    network = resnet_cifar(14).double()
    ours = convert(network, "fixup(rescale=False, zero=False)")
    rival = HandWrittenFixup(network).double()
    assert sum(p.numel() for p in rival.parameters()) == sum(p.numel() for p in ours.parameters())
    torch.testing.assert_close(ours(IMAGES), rival(IMAGES), rtol=0, atol=1e-10)


def test_the_bare_network_is_that_without_norms() -> None:
    network = wide_resnet(10, 2).double()
    ours, bare = convert(network, "none(keep_scale=False)"), Bare(network)
    torch.testing.assert_close(bare(IMAGES), ours(IMAGES), rtol=1e-10, atol=1e-10)


NAMES = ["bare", "none", "skipinit(alpha=1)", "fixup", "batch_norm", "hand-written fixup"]


@pytest.mark.parametrize(
    ("what", "rows"), [("step", NAMES), ("inference", [*NAMES, *(f"{name}, fused" for name in NAMES[1:5])])]
)
def test_every_row_is_compared_with_its_baseline(
    what: str, rows: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", what, "--depth=8", "--rounds=1", "--batch-size=2", "--image-size=8", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    check_output("bench", printed)
    assert f"torch {torch.__version__}" in printed["setting"]
    assert [row["network"] for row in printed["rows"]] == rows
    assert all(row["lowest"] <= row["ratio"] <= row["highest"] for row in printed["rows"])
    assert printed["rows"][0]["ratio"] == 1


def test_memory_of_one_step() -> None:
    table = measure_memory(StepBench(depth=14, batch_size=16, image_size=32)).set_index("network")
    # The images, the stem's ReLU, and two ReLUs in each of two blocks of three stages, of 4 bytes a number.
    first, second, third = (16 * channels * side**2 * 4 for channels, side in ((16, 32), (32, 16), (64, 8)))
    expected = 16 * 3 * 32**2 * 4 + first + 4 * (first + second + third)
    assert table["mebibytes"]["bare"] * 2**20 == pytest.approx(expected, rel=0.01)
    assert table["ratio"]["none"] == 1
    # What the weights are folded to is kept too; it does not grow with the batch.
    assert table["ratio"]["fixup"] < 1.1
    assert table["ratio"][["hand-written fixup", "batch_norm"]].min() > 1.5
