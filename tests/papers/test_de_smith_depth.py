"""The tables over depth in worlds that are as published, and in others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from invented_runs import InventedLaboratory, Optimum, World, invented
from papers_helpers import assert_whole, carried_out, check_of

from normless.papers.artefact import Context, artefact_of
from normless.papers.protocol import SMOKE
from normless.papers.published import published_as
from normless.papers.verdict import verdict_of

TABLES = ("skipinit/table-3", "skipinit/table-4", "skipinit/table-5", "skipinit/table-6")
# What the text does not print: table 1's accuracies, and batch norm's beside table 4 (of zeroinit/table-2).
BATCH_NORM = {16: 93.5, 100: 94.7, 1000: 94.6}


def as_published(*tables: str) -> World:
    """Every combination that one of the tables prints reaches just that, by the metric printed, at its rate."""
    rows = [row for table in tables for row in published_as(table).rows]

    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        accuracy = metric == "test_accuracy"
        usual = Optimum(BATCH_NORM[int(labels["depth"])]) if accuracy else Optimum(0.01, deviation=0.0)
        for row in rows:
            name = row.get("variant", row.get("method"))
            if name not in labels.values() or str(row["depth"]) != labels["depth"]:
                continue
            if row.get("trainable") is False:
                return Optimum(None)
            if row.get(metric) is not None and not isinstance(row[metric], str):
                return Optimum(row[metric], row["lr_log2"], row["std"] if accuracy else 0.0)
        return usual

    return world


@pytest.mark.parametrize("table", TABLES)
def test_a_world_as_published_is_found_as_published(table: str, tmp_path: Path) -> None:
    evidence, _ = invented(table, as_published(table), tmp_path)
    assert verdict_of(evidence.checks) == "holds", [one for one in evidence.checks if one.verdict != "holds"]
    merged = assert_whole(table, evidence)
    metric = "test_accuracy" if "test_accuracy_published" in merged else "training_loss"
    known = merged[merged[f"{metric}_published"].notna()]
    assert list(known["lr_log2_measured"]) == list(known["lr_log2_published"])
    gaps = (known[f"{metric}_measured"] - known[f"{metric}_published"]).abs()
    assert (gaps < (0.5 if metric == "test_accuracy" else 0.02)).all()
    printed = published_as(table).rows
    dashes = [(str(row["variant"]), str(row["depth"])) for row in printed if row.get("trainable") is False]
    measured = evidence.measured
    not_trained = measured[~measured["trainable"].astype(bool)]
    assert {(row["variant"], str(row["depth"])) for row in not_trained.to_dict("records")} == set(dashes)
    assert not_trained["lr_log2"].isna().all()


def test_zeroinits_tables_as_published(tmp_path: Path) -> None:
    world = as_published("zeroinit/table-2", "zeroinit/table-3")
    evidence, _ = invented("zeroinit/table-2", world, tmp_path)
    assert verdict_of(evidence.checks) == "holds", [one for one in evidence.checks if one.verdict != "holds"]
    evidence, _ = invented("zeroinit/table-3", world, tmp_path)
    assert verdict_of(evidence.checks) == "holds", [one for one in evidence.checks if one.verdict != "holds"]


def test_where_all_is_alike_nothing_fails_to_train_and_nothing_gains(tmp_path: Path) -> None:
    tables = ("skipinit/table-1", "skipinit/table-4", "zeroinit/table-2")

    def alike(metric: str, labels: Mapping[str, str]) -> Optimum:
        return Optimum(90.0) if metric == "test_accuracy" else Optimum(0.5, deviation=0.001)

    for table in tables:
        evidence, _ = invented(table, alike, tmp_path)
        assert verdict_of(evidence.checks) == "fails", table
    evidence, _ = invented("skipinit/table-5", alike, tmp_path)
    assert check_of(evidence, "skipinit_alpha_1 cannot be trained at depth 100,").verdict == "fails"
    assert check_of(evidence, "skipinit_alpha_1 can be trained at depth 16").verdict == "holds"
    assert check_of(evidence, "Divided by √2 the accuracy").verdict == "fails"


def test_where_nothing_trains_nothing_is_decided_against_batch_norm(tmp_path: Path) -> None:
    evidence, _ = invented("skipinit/table-1", lambda metric, labels: Optimum(None), tmp_path)
    assert {one.verdict for one in evidence.checks} == {"inconclusive"}


def test_short_runs_at_chance_decide_nothing(tmp_path: Path) -> None:
    class AtChance(InventedLaboratory):
        def _row(self, point: object) -> dict[str, object]:
            row = super()._row(point)  # type: ignore[arg-type]
            return row | {"outcome": "chance"} if row["outcome"] == "diverged" else row

    world = as_published("skipinit/table-5")
    found = artefact_of("skipinit/table-1")
    for budget, expected in (("small", "inconclusive"), ("paper", "holds")):
        context = Context(budget, AtChance(world), tmp_path)  # type: ignore[arg-type]
        evidence = found.function(context, **found.settings[budget])  # type: ignore[index]
        assert check_of(evidence, "skipinit_alpha_1 cannot be trained at depth 100,").verdict == expected


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
    assert len(hashes["zeroinit/table-3"] & hashes["skipinit/table-1"]) == 3 * 7 * 4
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
    single = replace(SMOKE, replicates=1, best=1)
    evidence, _ = invented("skipinit/table-1", high, tmp_path, budget="smoke", effort=single)
    assert any("A single run at each rate" in remark for remark in evidence.remarks)
    assert math.isnan(evidence.measured["std"].iloc[0])


@pytest.mark.slow
def test_smoke_trains(context: Context) -> None:
    evidence = carried_out("zeroinit/table-3", context, depths=(10, 16))
    assert_whole(
        "zeroinit/table-3",
        evidence,
        unmeasured=tuple(f"{m}/{d}" for m in ("zeroinit_without_l2", "scalar_multiplier") for d in (100, 1000)),
    )
    assert set(evidence.measured["runs"]) == {SMOKE.best}
