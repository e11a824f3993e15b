"""What a card's budget takes: shares of seconds, speeds by rows, the order of steps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normless_lab.sweeps import RunRow
from normless_papers.experiments.image_runs import PaperConfig
from normless_papers.experiments.protocol import asked_by
from normless_papers.pages.headline import headlines
from normless_papers.planning.plan import Need, Speeds, Step, claim_minutes, needs_of, shared_seconds, steps_of


def config(depth: int = 110, scheme: str = "none", **settings: Any) -> PaperConfig:
    values = {"data": "cifar10", "epochs": 10, "batch_size": 128, "rate": 0.1, "seed": 0, **settings}
    return PaperConfig.from_dict({"model": f"normless:resnet_cifar(depth={depth})", "scheme": scheme, **values})


def row(own: PaperConfig, seconds: float, end: int, machine: str = "one") -> RunRow:
    result = {"device": "a card", "epochs": [{}] * 10}
    at = f"2026-01-01T00:{end // 60:02}:{end % 60:02}+00:00"
    return RunRow(own.hash, own.KIND, own.to_dict(), "trained", None, result, seconds, at, machine, {})


def test_each_second_of_a_machine_is_shared_by_the_runs_in_it() -> None:
    first, second, third, alone = (config(seed=seed) for seed in range(4))
    rows = [row(first, 60, 60), row(second, 60, 90), row(third, 10, 50), row(alone, 60, 60, "other")]
    # Alone for 30 s, then two for 10 s, three for 10 s, two for 10 s, and the second alone for 30 s.
    expected = {first: 30 + 5 + 10 / 3 + 5, second: 5 + 10 / 3 + 5 + 30, third: 10 / 3, alone: 60.0}
    assert shared_seconds(rows) == pytest.approx({own.hash: seconds for own, seconds in expected.items()})


def test_rows_of_the_same_network_and_device_say_what_a_run_takes() -> None:
    done, alike = config(), config(seed=1, rate=0.3, epochs=20)
    speeds = Speeds([row(done, 50, 50)], "a card")
    assert speeds.seconds(alike) == pytest.approx(100)
    # Without rows of this scheme those of the same network say it.
    assert speeds.seconds(config(scheme="fixup")) == pytest.approx(50)
    stated = Speeds().seconds(alike)
    assert Speeds([row(done, 50, 50)], "cpu").seconds(alike) == stated
    assert Speeds([replace(row(done, 50, 50), outcome="failed", result=None)], "a card").seconds(alike) == stated


def test_steps_decide_most_per_second_and_count_shared_runs_once() -> None:
    shared = Need({"1": 60.0, "2": 60.0}), Need({"2": 60.0, "3": 10.0})
    needs = {"a": shared[0], "b": shared[1], "c": Need({"4": 65.0}, 1.0), "unknown": Need({"5": math.nan})}
    claims = {"first": ("unknown",), "of a": ("a", "done"), "of b": ("b",), "of c": ("c",), "over": ("done",)}
    *steps, unknown = steps_of(claims, needs)
    assert steps == [Step(("of c",), ("c",), 66.0), Step(("of b",), ("b",), 70.0), Step(("of a",), ("a",), 60.0)]
    assert (unknown.claims, math.isnan(unknown.seconds)) == (("first",), True)
    # Two claims of the same runs are decided together, before a cheaper single one.
    twice = {"one": ("a",), "two": ("a",), "of b": ("b",)}
    assert [step.claims for step in steps_of(twice, needs)] == [("one", "two"), ("of b",)]


def test_a_plan_has_every_run_of_its_artefacts_and_trains_none(tmp_path: Path) -> None:
    names = ("fixup/figure-4", "fixup/table-3")
    needs = needs_of(names, "gpu", tmp_path)
    assert not (tmp_path / "laboratory").exists()
    for name in names:
        sweeps = {id(asked.sweep): asked.sweep for asked in asked_by(name, "gpu")}
        assert needs[name].runs.keys() == {run.config.hash for own in sweeps.values() for run in own.points()}


def test_the_minutes_of_the_headlines_are_those_of_their_runs() -> None:
    assert {own.claim: own.minutes for own in headlines() if own.minutes is not None} == claim_minutes()
