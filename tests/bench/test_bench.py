"""The benchmarks measure what they say: the rival is the same function, and every network gets its turns."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from normless import convert
from normless.bench import (
    DataBench,
    MapBench,
    ProbeBench,
    ScaleBench,
    StepBench,
    SweepBench,
    measure_data,
    measure_map,
    measure_probes,
    measure_scale,
    measure_step,
    measure_sweep,
)
from normless.bench.step import HandWrittenFixup
from normless.cli import main
from normless.models import resnet_cifar


def test_the_hand_written_rival_is_fixup() -> None:
    network = resnet_cifar(14).double()
    ours = convert(network, "fixup(rescale=False, zero=False)")
    rival = HandWrittenFixup(network).double()
    assert sum(p.numel() for p in rival.parameters()) == sum(p.numel() for p in ours.parameters())
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    assert torch.allclose(ours(images), rival(images), rtol=0, atol=1e-10)


def test_every_network_is_compared_with_the_bare_one() -> None:
    table = measure_step(StepBench(depth=8, batch_size=2, image_size=8, rounds=3))
    assert table["network"].tolist() == ["none", "skipinit(alpha=1)", "fixup", "batch_norm", "hand-written fixup"]
    assert table["ratio"][0] == 1.0
    assert (table["seconds"] > 0).all()
    assert (table["lowest"] <= table["ratio"]).all()
    assert (table["ratio"] <= table["highest"]).all()


def test_the_map_is_compared_with_the_export_it_needs() -> None:
    table = measure_map(MapBench(networks=("timm:test_resnet",), rounds=3))
    assert table["network"].tolist() == ["timm:test_resnet"]
    assert table["blocks"].tolist() == [4]
    assert (table[["export", "map"]] > 0).all(axis=None)
    assert (table["lowest"] <= table["ratio"]).all()
    assert (table["ratio"] <= table["highest"]).all()


def test_map_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "map", "--networks", "timm:test_vit", "--rounds", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    (row,) = printed["rows"]
    assert row["blocks"] == 12
    assert row["ratio"] == row["lowest"] == row["highest"] == row["map"] / row["export"]
    assert f"torch {torch.__version__}" in printed["setting"]


def test_map_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "map", "--networks", "torchvision:resnet18", "--rounds", "1"]) == 0
    printed = capsys.readouterr().out
    for column in ("network", "blocks", "export", "map", "ratio", "lowest", "highest", "torchvision:resnet18"):
        assert column in printed


def test_rounds_below_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "map", "--rounds", "0"]) == 2
    assert "Expected --rounds to be 1 or more, got 0." in capsys.readouterr().err


def test_probes_are_compared_with_the_pass_they_watch() -> None:
    table = measure_probes(ProbeBench(depth=8, batch_size=32, rounds=2))
    assert table["probes"].tolist() == ["plain pass", "signal, gradients, logits", "gradient sums"]
    assert table["ratio"][0] == table["memory_ratio"][0] == 1.0
    assert (table[["seconds", "megabytes"]] > 0).all(axis=None)
    assert (table["lowest"] <= table["ratio"]).all()
    assert (table["ratio"] <= table["highest"]).all()


@pytest.mark.slow
def test_workers_are_compared_with_one_process_of_as_many_threads() -> None:
    table = measure_sweep(
        SweepBench("normless:wide_resnet(depth=10, width=1)", epochs=1, runs=2, workers=2, rounds=2)
    )
    assert table["executor"].tolist() == ["one process", "workers"]
    assert table["processes"].tolist() == [1, 2]
    assert table["threads"].tolist() == [2, 1]
    assert (table[["seconds", "training", "overhead"]] > 0).all(axis=None)
    assert (table["lowest"] <= table["ratio"]).all()
    assert (table["ratio"] <= table["highest"]).all()
    # Each ratio is of the same rounds, seen from the other side.
    assert table["lowest"][0] == pytest.approx(1 / table["highest"][1])
    assert table["seconds"][0] > table["training"][0] * 2


def test_a_scaling_law_is_fitted_and_drawn(tmp_path: Path) -> None:
    bench = ScaleBench(depths=(100, 202), widths=(), batches=(), rounds=1, out=tmp_path / "scale.svg")
    table = measure_scale(bench)
    assert table["varied"].tolist() == ["depth"] * 4
    assert table["recomputed"].tolist() == [False, False, True, True]
    assert table["value"].tolist() == [100, 202, 100, 202]
    assert (table[["seconds", "MiB"]] > 0).all(axis=None)
    for _, rows in table.groupby("recomputed"):
        slope = math.log(rows["seconds"].iloc[1] / rows["seconds"].iloc[0]) / math.log(2.02)
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
    assert (table["images_per_second"] > 0).all()
    assert (table["ratio"][1::2] == 1.0).all()
    speeds = table["images_per_second"]
    assert table["ratio"][0] == pytest.approx(speeds[0] / speeds[1])
