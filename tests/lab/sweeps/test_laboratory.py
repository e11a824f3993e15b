"""The laboratory: what is run, what is not run again, what becomes of runs that raise or whose process dies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lab_helpers import Here, TinyConfig, tiny_result, tiny_sweep

from normless_lab.sweeps import Laboratory, LaboratoryListener, RateGrid, RunRow, axis_of
from normless_lab.sweeps._dispatch import RESUBMISSIONS
from normless_lab.sweeps._laboratory import Shard
from normless_lab.train._pauses import TimeLimitError


class Notes(LaboratoryListener):
    """Records its calls."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []

    def on_begin(self, missing: int, finished: int) -> None:
        self.notes.append(("begin", missing, finished))

    def on_runs(self, rows: Sequence[RunRow]) -> None:
        self.notes += [("run", row.outcome) for row in rows]

    def on_resubmit(self, config_hash: str, error: str) -> None:
        self.notes.append(("again", error))

    def on_end(self) -> None:
        self.notes.append(("end",))


def seeds(*numbers: int, **settings: Any) -> list[TinyConfig]:
    return [TinyConfig(seed=seed, **settings) for seed in numbers]


def test_runs_come_back_in_order_and_are_not_run_again(tmp_path: Path) -> None:
    here, notes = Here(), Notes()
    configs = seeds(3, 1, 2, 1)
    with Laboratory(tmp_path, executor=lambda: here, listener=notes) as lab:
        rows = lab.carry_out(configs)
        again = lab.carry_out([*configs, *seeds(4)])
    assert [row.hash for row in rows] == [config.hash for config in configs]
    assert [row.settings() for row in rows] == configs
    assert rows == again[:4]
    assert len(here.carried_out) == 4
    assert (here.entered, here.left) == (1, 1)
    trained = ("run", "trained")
    assert notes.notes == [("begin", 3, 0), trained, trained, trained, ("end",), ("begin", 1, 3), trained, ("end",)]
    assert list((tmp_path / "work").iterdir()) == []
    with Laboratory(tmp_path, executor=lambda: here) as lab:
        assert lab.carry_out(configs) == rows
    assert here.entered == 1


@pytest.mark.parametrize("deaths", [RESUBMISSIONS, RESUBMISSIONS + 1])
def test_a_run_whose_process_dies_is_tried_again_a_few_times(tmp_path: Path, deaths: int) -> None:
    notes = Notes()
    here = Here(window=2, deaths={1: deaths})
    with Laboratory(tmp_path, executor=lambda: here, listener=notes) as lab:
        rows = lab.carry_out(seeds(*range(4)))
    survives = deaths <= RESUBMISSIONS
    assert [row.outcome for row in rows] == ["trained", "trained" if survives else "failed", "trained", "trained"]
    assert notes.notes.count(("again", "its process died with exit code -9.")) == min(deaths, RESUBMISSIONS)
    if not survives:
        assert rows[1].error == "WorkerDiedError: its process died with exit code -9. This happened 4 times."


def test_a_sweep_gives_its_tables(tmp_path: Path) -> None:
    sweep = tiny_sweep(
        axes={"scheme": axis_of("scheme", ["none", "fixup"]), "fate": axis_of("fate", ["well", "raises"])}
    )
    with Laboratory(tmp_path, executor=Here) as lab:
        result = lab.run(sweep)
    assert result.missing == 0
    assert list(result.runs.columns[:5]) == ["scheme", "fate", "rate", "seed", "outcome"]
    good = result.runs[result.runs["fate"] == "well"]
    for row in good.to_dict("records"):
        expected = tiny_result(TinyConfig(scheme=row["scheme"], rate=row["rate"], seed=row["seed"]))
        numbers = (expected.test_accuracy, expected.epochs[-1].training_loss)
        assert (row["test_accuracy"], row["training_loss"]) == numbers
        assert (row["outcome"], row["epochs"], row["error"]) == ("trained", 2, None)
    bad = result.runs[result.runs["fate"] == "raises"]
    assert set(bad["outcome"]) == {"failed"}
    assert bad["test_accuracy"].isna().all()
    assert len(result.epochs) == 2 * len(good)
    optima = result.optima("test_accuracy").set_index(["scheme", "fate"])
    assert optima.loc[("none", "well"), "rate"] == 0.25
    assert optima.loc[("none", "raises"), "failed"] == 6


def test_rates_are_extended_where_the_optimum_lies_at_an_end_and_nowhere_else(tmp_path: Path) -> None:
    sweep = tiny_sweep(
        axes={"place": {"inside": {"good": 0.25}, "above": {"good": 2.0}, "far below": {"good": 2.0**-9}}},
        rates=RateGrid.powers(-3, -1),
    )
    here = Here()
    with Laboratory(tmp_path, executor=lambda: here) as lab:
        result = lab.run(sweep)
        tried = result.runs.groupby("place", sort=False)["rate"].unique().map(sorted)
        first = len(here.carried_out)
        again = lab.run(sweep)
    assert tried["inside"] == [0.125, 0.25, 0.5]
    # Up to the rate behind the best one, and not further than three rates.
    assert tried["above"] == [0.125, 0.25, 0.5, 1.0, 2.0, 4.0]
    assert tried["far below"] == [2.0**-6, 2.0**-5, 2.0**-4, 0.125, 0.25, 0.5]
    optima = result.optima("test_accuracy").set_index("place")
    assert list(optima["rate"]) == [0.25, 2.0, 2.0**-6]
    assert list(optima["edge"]) == ["", "", "lowest"]
    assert len(here.carried_out) == first == len(result.runs) == 2 * (3 + 6 + 6)
    pd.testing.assert_frame_equal(result.runs, again.runs)


def test_shards_share_the_runs_and_extend_them_together(tmp_path: Path) -> None:
    sweep = tiny_sweep(base={"good": 1.0}, replicates=6, best=6)
    url = f"sqlite:///{tmp_path / 'shared.sqlite'}"
    executors = [Here(), Here(), Here()]
    missing = 1
    for _ in range(4):
        for index, here in enumerate(executors, 1):
            folder = tmp_path / f"machine-{index}"
            with Laboratory(folder, url=url, executor=lambda here=here: here, shard=Shard(index, 3)) as lab:
                missing = lab.run(sweep).missing
    assert missing == 0
    with Laboratory(tmp_path / "alone", executor=Here) as lab:
        alone = lab.run(sweep)
    with Laboratory(tmp_path / "reader", url=url, executor=Here) as lab:
        together = lab.read(sweep)
    carried_out = [args[2].rpartition("/")[2] for here in executors for args in here.carried_out]
    assert len(carried_out) == len(set(carried_out)) == len(alone.runs)
    assert all(here.carried_out for here in executors)
    kept = alone.runs.drop(columns="seconds_per_epoch")
    pd.testing.assert_frame_equal(kept, together.runs.drop(columns="seconds_per_epoch"))


def test_weights_are_the_kept_folders_of_runs(tmp_path: Path) -> None:
    here = Here()
    sweep = tiny_sweep(axes={}, rates=RateGrid((0.25,)), keep_weights=True)
    configs = [point.config for point in sweep.points()]
    other = TinyConfig(seed=7)
    with Laboratory(tmp_path, executor=lambda: here) as lab:
        lab.run(sweep)
        assert lab.weights(configs) == [lab.kept / config.hash for config in configs]
        assert len(here.carried_out) == 2
        # A run that was finished without them starts again; its row stays.
        (row,) = lab.carry_out([other])
        assert list(lab.work.iterdir()) == []
        (folder,) = lab.weights([other])
        assert len(here.carried_out) == 4
        assert lab.carry_out([other]) == [row]
        assert (folder / "epochs.txt").read_text().splitlines() == [f"{epoch} {os.getpid()}" for epoch in (1, 2)]
        assert lab.asked == {config.hash for config in (*configs, other)}
    assert here.entered == 1


def test_a_run_in_progress_is_ended_when_the_time_is_over_and_resumes(tmp_path: Path) -> None:
    config = TinyConfig(epochs=600, pause=0.05)

    def seconds_left() -> float:
        return 0.0 if list(tmp_path.glob("work/*/epochs.txt")) else 0.05

    with Laboratory(tmp_path, workers=1, seconds_left=seconds_left) as lab, pytest.raises(TimeLimitError):
        lab.carry_out([config])
    record = tmp_path / "work" / config.hash / "epochs.txt"
    done = len(record.read_text().splitlines())
    assert 0 < done < config.epochs
    record.write_text(record.read_text() + "more\n" * (config.epochs - done - 1))
    with Laboratory(tmp_path, executor=Here) as lab:
        (row,) = lab.carry_out([config])
    assert (row.result or {})["resumed_after"] == config.epochs - 1


def test_sweeps_are_carried_out_together_and_a_shared_run_once(tmp_path: Path) -> None:
    here, notes = Here(), Notes()
    first, second = tiny_sweep(), tiny_sweep(name="other", axes={"scheme": axis_of("scheme", ["fixup", "sqrt2"])})
    with Laboratory(tmp_path, executor=lambda: here, listener=notes) as lab:
        both = lab.run_all([first, second])
        assert [result.missing for result in both] == [0, 0]
        pd.testing.assert_frame_equal(both[0].runs, lab.run(first).runs)
        pd.testing.assert_frame_equal(both[1].runs, lab.run(second).runs)
    assert len(here.carried_out) == 3 * 3 * 2
    assert notes.notes[0] == ("begin", 3 * 3 * 2, 0)
    assert [note[0] for note in notes.notes].count("begin") == 1
