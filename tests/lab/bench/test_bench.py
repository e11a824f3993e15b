"""The benchmarks measure what they say: the rival is the same function, and every network gets its turns."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from command_outputs import check_output

from normless import convert
from normless.cli import main
from normless.models import resnet_cifar, wide_resnet
from normless_lab.bench import StepBench, measure_memory
from normless_lab.bench.by_hand import Bare, HandWrittenFixup

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


NAMES = ["bare", "none", "skipinit(alpha=1)", "fixup", "batch_norm"]
SMALL = "--batch-size 2 --image-size 8"
ACTS = ["crop, flip", "crop, flip, cutout", "crop, flip, cutout, mixup", "decode, crop, flip"]
TASKS = [task for task in ACTS for _ in ("normless", "torchvision")]
WATCHED = [f"{network}, {how}" for network in ("resnet_cifar(8)", "transformer(4)") for how in ("plain", "watched")]
PROBES = ["plain pass", "signal", "gradients", "the usual four", "gradient sums"]
RIVAL, FUSED = "hand-written fixup", [f"{name}, fused" for name in NAMES[1:]]
CONVERTED = ["as written", "skipinit", "fixup"]
# A command, a column of its table with its rows, and the place of the baseline in groups of so many rows.
MEASURED: list[tuple[str, str, list[Any], int, int]] = [
    (f"step --depth 8 --rounds 3 {SMALL}", "network", [*NAMES, RIVAL], 0, 6),
    (f"inference --depth 8 --rounds 1 {SMALL}", "network", [*NAMES, RIVAL, *FUSED], 0, 10),
    ("conversion --networks normless:resnet_cifar(depth=8) --rounds 2", "scheme", CONVERTED, 0, 3),
    ("map --networks timm:test_resnet --rounds 1", "task", ["forward", "export", "map", "convert"], 0, 4),
    ("probes --depth 8 --batch-size 32 --image-size 16 --rounds 2", "probes", PROBES, 0, 5),
    (f"watch --depth 8 --rounds 2 {SMALL}", "network", WATCHED, 0, 2),
    ("data --images 64 --files 8 --batch-size 32 --image-size 8 --rounds 1", "task", TASKS, 1, 2),
    ("sweep --epochs 1 --runs 2 --workers 2 --rounds 2", "executor", ["one process", "workers"], 2, 2),
]
FAST = ("conversion", "inference", "map --networks timm:test_resnet --rounds 1", "data")


@pytest.mark.filterwarnings("ignore:Step 3. The updates of .* are too small")
@pytest.mark.parametrize(
    ("words", "column", "expected", "baseline", "group"),
    [pytest.param(*one, marks=() if one[0].startswith(FAST) else pytest.mark.slow) for one in MEASURED],
)
def test_every_row_is_compared_with_its_baseline(
    words: str, column: str, expected: list[Any], baseline: int, group: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words.split(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    check_output("bench", printed)
    assert f"torch {torch.__version__}" in printed["setting"]
    rows: list[dict[str, Any]] = printed["rows"]
    assert [row[column] for row in rows] == expected
    for row in rows:
        assert all(value > 0 for value in row.values() if isinstance(value, float))
        assert row["lowest"] <= row["ratio"] <= row["highest"]
    assert all(row["ratio"] == 1 for row in rows[baseline::group])


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
