"""Artefacts in pieces: what decides most per minute first, nothing twice, and rows of several folders together."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from command_outputs import check_output
from papers_helpers import InThisProcess

from normless.cli import main
from normless_lab.sweeps import Laboratory, RunRow
from normless_papers.artefact import Artefact, Context, Evidence
from normless_papers.claims import check
from normless_papers.cli import reproduce as command
from normless_papers.experiments.effort import Effort
from normless_papers.experiments.runs import carry_out
from normless_papers.planning import plan
from normless_papers.published import published_as
from normless_papers.results import merged as merging
from normless_papers.results import reproduce as module
from normless_papers.results.merged import merged

SHORT, LONG = "fixup/table-1", "fixup/figure-4"
SECONDS = 40.0
Piece = Callable[[Path, float], dict[str, Any]]


class Inline(InThisProcess):
    """An executor that notes the runs of all executors."""

    carried_out: ClassVar[list[dict[str, Any]]] = []

    def submit(self, function: Callable[..., Any], *args: Any, group: Hashable = None) -> Future[Any]:
        future = super().submit(function, *args, group=group)
        if function.__name__ == "carry_out_run":
            self.carried_out.append(args[1])
        return future


def measure(context: Context, *, effort: Effort) -> Evidence:
    runs = carry_out(context, effort.sweep(context, "tiny", {"method": {"none": {"scheme": "none"}}}), effort=effort)
    table = runs.table[["seed", "test_accuracy"]]
    return Evidence(table, (check("There are as many runs as seeds.", len(table) == effort.replicates),))


def artefact(name: str) -> Artefact:
    made = Artefact(published_as(name), "training", measure, checks=tuple)
    model = "normless:resnet_cifar(depth=8)"
    effort = Effort("digits(train=32, test=32)", model, epochs=1, batch_size=16, replicates={SHORT: 1, LONG: 3}[name])
    vars(made)["settings"] = {"gpu": {"effort": replace(effort, settings={"device": "cpu"} | LABELS[name])}}
    return made


# So that the artefacts share no run.
LABELS: dict[str, dict[str, Any]] = {SHORT: {"momentum": 0.5}, LONG: {"momentum": 0.9}}


@pytest.fixture(autouse=True)
def _artefacts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inline, "carried_out", [])

    def laboratory_in(out: Path, workers: int | None = None, listener: Any = None, **options: Any) -> Laboratory:
        return Laboratory(
            out / "laboratory", executor=Inline, listener=listener, seconds_left=options.get("seconds_left")
        )

    for place in (module, plan):
        monkeypatch.setattr(place, "artefact_of", artefact)
    monkeypatch.setattr(module, "laboratory_in", laboratory_in)
    monkeypatch.setattr(merging, "claims_at", lambda budget: {"a claim": (SHORT, LONG)})


@pytest.fixture
def piece(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Piece:
    """What the command prints after a piece of some minutes in which each run takes so many seconds."""

    def carried_out(out: Path, minutes: float) -> dict[str, Any]:
        before = len(Inline.carried_out)
        monkeypatch.setattr(command, "CLOCK", lambda: SECONDS * (len(Inline.carried_out) - before))
        words = ["reproduce", LONG, SHORT, "--budget", "gpu", "--minutes", str(minutes), "--out", str(out), "--json"]
        assert main(words) == 0
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        check_output("reproduce", printed)
        return printed

    return carried_out


def test_pieces_add_up_and_the_cheapest_decision_comes_first(tmp_path: Path, piece: Piece) -> None:
    first = piece(tmp_path, 1)
    assert [result["id"] for result in first["results"]] == [SHORT]
    assert [step["artefacts"] for step in first["next"]] == [[LONG]]
    assert len(Inline.carried_out) == 2
    second = piece(tmp_path, 10)
    assert ([result["id"] for result in second["results"]], second["next"]) == ([LONG], [])
    assert len(Inline.carried_out) == 4


def test_of_conflicting_rows_the_earlier_counts_and_differing_results_are_named(tmp_path: Path, piece: Piece) -> None:
    whole, early, late = (tmp_path / name for name in ("whole", "early", "late"))
    piece(whole, 10)
    rows = rows_of(whole)
    first, second, third, fourth = (replace(row, finished_at="2026-01-01T00:00:00+00:00") for row in rows)
    keep(early, [first, second, failed(third), fourth])
    later = [replace(row, finished_at="2026-01-02T00:00:00+00:00", seconds=99.0) for row in rows]
    changed = {**(later[1].result or {}), "test_accuracy": 0.123}
    keep(late, [later[0], replace(later[1], result=changed), later[2], failed(later[3])])
    with merged([late, early]) as (out, differing):
        merged_rows = {row.hash: row for row in rows_of(out)}
    assert [merged_rows[row.hash] for row in (first, second, fourth)] == [first, second, fourth]
    assert merged_rows[third.hash] == later[2]
    (sentence,) = differing
    assert second.hash[:8] in sentence
    assert "0.123" in sentence


def failed(row: RunRow) -> RunRow:
    return replace(row, outcome="failed", error="MemoryError: none", result=None)


def rows_of(out: Path) -> list[RunRow]:
    with Laboratory(out / "laboratory") as laboratory:
        return list(laboratory.state.read(laboratory.state.hashes()).values())


def keep(out: Path, rows: list[RunRow]) -> None:
    (out / "laboratory").mkdir(parents=True)
    with Laboratory(out / "laboratory") as laboratory:
        laboratory.state.add(rows)
