"""The tables over depth in worlds that are as published, and in others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from invented_runs import Optimum, invented
from papers_helpers import assert_whole, carried_out, check_of
from worlds.de_smith_depth import as_published

from normless_lab.sweeps import RateGrid
from normless_papers.artefact import Context, artefact_of
from normless_papers.published import published_as

TABLES = ("skipinit/table-3", "skipinit/table-4", "skipinit/table-5", "skipinit/table-6")


@pytest.mark.parametrize("table", TABLES)
def test_a_world_as_published_is_tabulated_as_published(table: str, tmp_path: Path) -> None:
    evidence, _ = invented(table, as_published(table), tmp_path)
    merged = assert_whole(table, evidence)
    metric = "test_accuracy" if "test_accuracy_published" in merged else "training_loss"
    known = merged[merged[f"{metric}_published"].notna()]
    assert list(known["lr_log2_measured"]) == list(known["lr_log2_published"])
    gaps = (known[f"{metric}_measured"] - known[f"{metric}_published"]).abs()
    assert (gaps <= known["std_published"].astype(float) + 1e-9).all()
    printed = published_as(table).rows
    dashes = [(str(row["variant"]), str(row["depth"])) for row in printed if row.get("trainable") is False]
    measured = evidence.measured
    not_trained = measured[~measured["trainable"].astype(bool)]
    assert {(row["variant"], str(row["depth"])) for row in not_trained.to_dict("records")} == set(dashes)
    assert not_trained["lr_log2"].isna().all()


def test_where_nothing_trains_nothing_is_decided_against_batch_norm(tmp_path: Path) -> None:
    evidence, _ = invented("skipinit/table-1", lambda metric, labels: Optimum(None), tmp_path)
    assert {check.verdict for check in evidence.checks} == {"inconclusive"}


@pytest.mark.parametrize(("reached", "verdict"), [(30.0, "inconclusive"), (90.0, "holds")])
def test_what_batch_norm_itself_learns_too_little_for_is_not_decided(
    reached: float, verdict: str, tmp_path: Path
) -> None:
    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        return Optimum(reached) if labels["variant"] == "batch_norm" else Optimum(None)

    evidence, _ = invented("skipinit/table-1", world, tmp_path, budget="smoke")
    assert check_of(evidence, "skipinit_alpha_1 cannot be trained at depth 100,").verdict == verdict


def test_the_papers_runs_are_all_there_and_shared(tmp_path: Path) -> None:
    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        return Optimum(90.0)

    hashes = {}
    for table in ("skipinit/table-1", "skipinit/table-3", "skipinit/table-5", "zeroinit/table-2", "zeroinit/table-3"):
        _, laboratory = invented(table, world, tmp_path)
        (sweep,) = laboratory.sweeps
        effort = artefact_of(table).settings["paper"]["effort"]
        assert (effort.replicates, effort.best, sweep.replicates) == (15, 12, 4)
        hashes[table] = {point.config.hash for point in sweep.points()}
        assert len(hashes[table]) == len(sweep.combinations) * 7 * 4
    assert len(hashes["skipinit/table-1"]) == 6 * 3 * 7 * 4
    assert hashes["skipinit/table-1"] == hashes["skipinit/table-3"]
    assert not hashes["skipinit/table-1"] & hashes["skipinit/table-5"]
    # Batch norm of one and the multiplier of the other are runs of the SkipInit table.
    assert len(hashes["zeroinit/table-2"] & hashes["skipinit/table-1"]) == 3 * 7 * 4
    assert len(hashes["zeroinit/table-3"] & hashes["skipinit/table-1"]) == 2 * 3 * 7 * 4
    config = sweep.points()[0].config.to_dict()
    assert config | {"epochs": 200, "momentum": 0.9, "batch_size": 64, "schedule": "hold_then_halve"} == config
    model = "normless:wide_resnet(depth=16, width=2, initialization=he_fan_in, classifier_bias=False)"
    assert (config["data"], config["model"]) == ("cifar10", model)


def test_edges_and_single_runs_are_told(tmp_path: Path) -> None:
    def high(metric: str, labels: Mapping[str, str]) -> Optimum:
        return Optimum(90.0, exponent=30) if metric == "test_accuracy" else Optimum(0.5, exponent=30)

    evidence, laboratory = invented("skipinit/table-1", high, tmp_path)
    assert any("lies at an end of the learning rates tried" in remark for remark in evidence.remarks)
    assert max(point.rate for point in laboratory.points) == 2.0**2
    single = replace(artefact_of("skipinit/table-1").settings["smoke"]["effort"], replicates=1, best=1)
    evidence, _ = invented("skipinit/table-1", high, tmp_path, budget="smoke", effort=single)
    assert any("A single run at each rate" in remark for remark in evidence.remarks)
    assert math.isnan(evidence.measured["std"].iloc[0])


@pytest.mark.slow
def test_smoke_trains(context: Context) -> None:
    effort = replace(
        artefact_of("zeroinit/table-3").settings["smoke"]["effort"], rates=RateGrid((2.0**-4, 2.0**-2), None)
    )
    evidence = carried_out("zeroinit/table-3", context, depths=(10, 16), effort=effort)
    deep = tuple(f"{m}/{d}" for m in ("zeroinit_without_l2", "scalar_multiplier") for d in (100, 1000))
    assert_whole("zeroinit/table-3", evidence, unmeasured=deep)
    assert set(evidence.measured["runs"]) == {2 * effort.replicates}
