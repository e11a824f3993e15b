"""The benchmarks measure what they say: the rival is the same function, and every network gets its turns."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import pandas as pd
import pytest
import torch
from command_outputs import check_output

from normless import convert
from normless.cli import main
from normless.models import resnet_cifar, wide_resnet
from normless_lab.bench import (
    ConversionBench,
    DataBench,
    MapBench,
    ProbeBench,
    ScaleBench,
    StepBench,
    SweepBench,
    WatchBench,
    measure_conversion,
    measure_data,
    measure_inference,
    measure_map,
    measure_memory,
    measure_probes,
    measure_scale,
    measure_step,
    measure_sweep,
    measure_watch,
)
from normless_lab.bench.by_hand import Bare, HandWrittenFixup


def test_the_hand_written_rival_is_fixup() -> None:
    network = resnet_cifar(14).double()
    ours = convert(network, "fixup(rescale=False, zero=False)")
    rival = HandWrittenFixup(network).double()
    assert sum(p.numel() for p in rival.parameters()) == sum(p.numel() for p in ours.parameters())
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    assert torch.allclose(ours(images), rival(images), rtol=0, atol=1e-10)


@pytest.mark.parametrize("network", [resnet_cifar(14), wide_resnet(10, 2)], ids=["resnet", "wide"])
def test_the_bare_network_is_that_without_norms(network: torch.nn.Module) -> None:
    network = network.double()
    ours, bare = convert(network, "none(keep_scale=False)"), Bare(network)
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(bare(images), ours(images), rtol=1e-10, atol=1e-10)
    norms = []
    for model in (bare, ours):
        gradients = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
        norms.append(sum(float(gradient.square().sum()) for gradient in gradients))
    assert norms[0] == pytest.approx(norms[1])


def assert_ratios(table: pd.DataFrame) -> None:
    """Check that every action took time and that ratios lie between the lowest and the highest of the rounds."""
    assert (table.select_dtypes("float") > 0).all(axis=None)
    assert (table["lowest"] <= table["ratio"]).all()
    assert (table["ratio"] <= table["highest"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("width", [0, 1])
def test_every_network_is_compared_with_the_bare_one(width: int) -> None:
    names = ["bare", "none", "skipinit(alpha=1)", "fixup", "batch_norm"]
    table = measure_step(StepBench(depth=10 if width else 8, batch_size=2, image_size=8, rounds=3, width=width))
    assert table["network"].tolist() == (names if width else [*names, "hand-written fixup"])
    assert table["ratio"][0] == table["of_fastest"][0] == 1.0
    assert_ratios(table)


def test_a_converted_network_is_compared_with_itself_as_written() -> None:
    bench = ConversionBench(networks=("normless:resnet_cifar(depth=8)",), schemes=("skipinit",), rounds=2)
    table = measure_conversion(bench)
    assert table["scheme"].tolist() == ["as written", "skipinit"]
    assert table["ratio"][0] == 1.0
    assert_ratios(table)


def test_inference_is_measured_as_it_is_and_fused() -> None:
    schemes = ("fixup", "batch_norm")
    table = measure_inference(StepBench(depth=8, batch_size=2, image_size=8, rounds=1, schemes=schemes))
    assert table["network"].tolist()[-2:] == ["fixup, fused", "batch_norm, fused"]
    assert_ratios(table)


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


@pytest.mark.slow
def test_all_has_a_table_per_benchmark(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {"depth": 8, "batch_size": 2, "image_size": 8}
    stated = [{"what": what, "with": flags, "to": "bare", "bars": {"fixup": 1.06}} for what in ("step", "memory")]
    monkeypatch.setattr("normless_lab.bench.command.TOGETHER", stated)
    assert main(["bench", "all", "--rounds", "1", "--json"]) == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    check_output("bench", facts)
    rows = facts["rows"]
    assert [row["benchmark"] for row in rows] == ["step"] * 6 + ["memory"] * 6
    shown = [line.split(": ") for line in printed.err.splitlines() if line.startswith(("step: ", "memory: "))]
    assert [(line[0], line[2]) for line in shown] == [(row["benchmark"], row["row"]) for row in rows]
    assert {row["aim"] for row in rows if row["row"] == "fixup"} == {1.06}
    assert rows[0]["ratio"] == 1
    for row in rows:
        assert row["result"] == ({True: "pass", False: "miss"}[row["ratio"] <= 1.06] if row["aim"] else None)
    monkeypatch.setattr(
        "normless_lab.bench.command.TOGETHER", [{**stated[1], "bars": {"bare": 1.5}, "at_least": True}]
    )
    assert main(["bench", "all"]) == 0
    shown = capsys.readouterr().out
    assert "memory, as a ratio to bare: ResNet-8 on cpu, 2 images of 8×8" in " ".join(shown.split())
    assert "aim" in shown
    assert "miss" in shown
    assert "lowest" not in shown  # memory is read once


@pytest.mark.slow
def test_a_map_and_a_conversion_are_compared_with_one_export() -> None:
    table = measure_map(MapBench(networks=("timm:test_resnet", "torchvision:alexnet"), rounds=3))
    assert table["network"].tolist() == ["timm:test_resnet"] * 3 + ["torchvision:alexnet"] * 2
    assert table["task"].tolist() == ["export", "map", "convert", "export", "map"]
    assert table["blocks"].tolist() == [4] * 3 + [0] * 2
    assert_ratios(table)


def test_map_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "map", "--networks", "timm:test_resnet", "--rounds", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    check_output("bench", printed)
    exported, *others = printed["rows"]
    assert exported["ratio"] == 1
    assert [row["task"] for row in others] == ["map", "convert"]
    for row in others:
        assert row["blocks"] == 4
        assert row["ratio"] == row["lowest"] == row["highest"] == row["seconds"] / exported["seconds"]
    assert f"torch {torch.__version__}" in printed["setting"]


@pytest.mark.slow
def test_probes_are_compared_with_the_pass_they_watch() -> None:
    table = measure_probes(ProbeBench(depth=8, batch_size=32, image_size=16, rounds=2))
    assert table["probes"].tolist() == ["plain pass", "signal", "gradients", "the usual four", "gradient sums"]
    assert table["ratio"][0] == table["memory_ratio"][0] == 1.0
    assert_ratios(table)


@pytest.mark.slow
def test_a_watched_step_is_compared_with_a_plain_one() -> None:
    with warnings.catch_warnings():
        # At the benchmark's tiny rate.
        warnings.filterwarnings("ignore", "Step 3: The updates of .* are too small")
        table = measure_watch(WatchBench(depth=8, batch_size=2, image_size=8, rounds=2, interval=2))
    assert table["network"].tolist() == [
        *("resnet_cifar(8), plain", "resnet_cifar(8), watched", "transformer(4), plain", "transformer(4), watched")
    ]
    assert table["ratio"][0] == table["ratio"][2] == 1.0
    assert_ratios(table)


@pytest.mark.slow
def test_a_scaling_law_is_fitted_and_drawn(tmp_path: Path) -> None:
    bench = ScaleBench(depths=(10, 22), widths=(), batches=(), rounds=1, out=tmp_path / "scale.svg")
    table = measure_scale(bench)
    assert table["varied"].tolist() == ["depth"] * 4
    assert table["recomputed"].tolist() == [False, False, True, True]
    assert table["value"].tolist() == [10, 22, 10, 22]
    assert (table[["seconds", "MiB"]] > 0).all(axis=None)
    for _, rows in table.groupby("recomputed"):
        slope = math.log(rows["seconds"].iloc[1] / rows["seconds"].iloc[0]) / math.log(2.2)
        assert rows["time_exponent"].tolist() == pytest.approx([slope, slope])
    assert f"kept, power {table['time_exponent'][0]:.2f}" in (tmp_path / "scale.svg").read_text()


def test_loaders_are_compared_with_torchvision() -> None:
    table = measure_data(DataBench(images=64, files=8, batch_size=32, image_size=8, rounds=1))
    assert table["loader"].tolist() == ["normless", "torchvision"] * 4
    assert table["task"].tolist()[::2] == [
        "crop, flip",
        "crop, flip, cutout",
        "crop, flip, cutout, mixup",
        "decode, crop, flip",
    ]
    assert_ratios(table)
    assert (table["ratio"][1::2] == 1.0).all()
    speeds = table["images_per_second"]
    assert table["ratio"][0] == pytest.approx(speeds[0] / speeds[1])


@pytest.mark.slow
def test_workers_are_compared_with_one_process_of_as_many_threads() -> None:
    table = measure_sweep(
        SweepBench("normless:wide_resnet(depth=10, width=1)", epochs=1, runs=2, workers=2, rounds=2)
    )
    assert table["executor"].tolist() == ["one process", "workers"]
    assert table["processes"].tolist() == [1, 2]
    assert table["threads"].tolist() == [2, 1]
    assert_ratios(table)
    # Each ratio is of the same rounds, seen from the other side.
    assert table["lowest"][0] == pytest.approx(1 / table["highest"][1])
    assert table["seconds"][0] > table["training"][0] * 2
