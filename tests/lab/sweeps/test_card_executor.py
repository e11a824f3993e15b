"""Runs side by side in one process: turns, how many of them, and what becomes of them when one fails or is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lab_helpers import TinyConfig
from turning_helpers import order

from normless_lab.sweeps import Laboratory, LocalExecutor
from normless_lab.sweeps._card import Admission, CardExecutor, Turns
from normless_lab.sweeps._processes import Ended, Order
from normless_lab.sweeps._runs import carry_out_run
from normless_lab.train import TrainConfig

KIND = "turning_helpers:TURNING"


def _orders(folder: Path, configs: list[TinyConfig], kind: str = KIND) -> list[Order]:
    runs = [(kind, config.to_dict(), str(folder / f"run-{index}")) for index, config in enumerate(configs)]
    return [Order(number, carry_out_run, run) for number, run in enumerate(runs)]


def _carried_out(orders: list[Order], together: int) -> dict[int, Ended]:
    """The outcomes of orders by number; so many runs take turns."""
    ended: dict[int, Ended] = {}
    turns = Turns(Admission(together, lambda: (0.0, 1.0)), lambda outcome: ended.update({outcome.number: outcome}))
    waiting = [*orders]
    while waiting or not turns.is_idle or turns.orders:
        while waiting and turns.has_room:
            turns.take(waiting.pop(0))
        turns.turn()
    return ended


def test_runs_take_turns_and_draw_what_they_draw_alone(tmp_path: Path) -> None:
    configs = [TinyConfig(seed=seed, epochs=3) for seed in range(3)]
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    rows = [_carried_out(_orders(folder, configs), together) for folder, together in ((alone, 1), (beside, 3))]
    assert order(alone) == [(seed, epoch) for seed in range(3) for epoch in (1, 2, 3)]
    assert order(beside) == [(seed, epoch) for epoch in (1, 2, 3) for seed in range(3)]
    for seed in range(3):
        torch.manual_seed(seed)
        expected = repr([float(torch.rand(())) for _ in "abc"])
        assert [(folder / f"draws-{seed}.txt").read_text() for folder in (alone, beside)] == [expected] * 2
        assert len({row[seed].result.result["test_accuracy"] for row in rows}) == 1


def test_a_run_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    fates = ["well", "raises", "cannot begin", "well"]
    configs = [TinyConfig(seed=seed, epochs=3, fate=fate) for seed, fate in enumerate(fates)]
    ended = _carried_out(_orders(tmp_path, configs), 4)
    assert [ended[number].result.outcome for number in range(4)] == ["trained", "failed", "failed", "trained"]
    assert ended[1].result.error == "ArithmeticError: no such number"
    assert ended[2].result.error == "ValueError: no such fate"


def test_a_run_without_memory_begins_again_when_another_has_ended(tmp_path: Path) -> None:
    configs = [TinyConfig(seed=0, epochs=5), TinyConfig(seed=1, epochs=3, fate="lacks memory")]
    ended = _carried_out(_orders(tmp_path, configs), 2)
    assert ended[0].result.outcome == "trained"
    # Alone it lacks memory too.
    assert ended[1].result.outcome == "failed"
    assert "OutOfMemoryError" in ended[1].result.error
    assert order(tmp_path)[-2:] == [(1, 1), (1, 2)]


def _limit_after(speeds: dict[int, float]) -> int:
    """The limit that is found where so many runs together make so many steps per second, and each takes 10 bytes."""
    now = 0.0

    def memory() -> tuple[float, float]:
        return 10.0 * len(admission._turns), 1e9 - 10.0 * len(admission._turns)

    admission = Admission(None, memory, lambda: now)
    for _ in range(5_000):
        runs = admission.limit
        for run in range(runs):
            if run not in admission._turns:
                admission.begin(run)
            now += 1 / speeds[runs]
            admission.count(run)
    return admission.limit


def test_the_number_of_runs_is_doubled_while_it_pays() -> None:
    per_second = {1: 100.0, 2: 180.0, 4: 250.0, 8: 260.0, 16: 261.0}
    # The step from 4 to 8 makes 4 % more.
    assert _limit_after(per_second) == 8
    assert _limit_after({1: 100.0, 2: 101.0}) == 2


def _rows(folder: Path, configs: list[TrainConfig], executor: Callable[[], Any]) -> list[Any]:
    with Laboratory(folder, executor=executor) as laboratory:
        rows = laboratory.carry_out(configs)
    results: list[dict[str, Any]] = [dict(row.result or {}) for row in rows]
    for result in results:
        result.pop("seconds_per_epoch")
        for epoch in result["epochs"]:
            del epoch["seconds"]
    return results


@pytest.mark.slow
def test_rows_are_those_of_single_runs(tmp_path: Path) -> None:
    """Trainings, one of which diverges, by this executor and by one process after another."""
    model, data = "normless:wide_resnet(depth=10, width=1)", "digits(train=64, test=40)"
    config = TrainConfig(model=model, data=data, batch_size=32, epochs=2)
    drawn, wild = {"seed": 1, "dropout": 0.3, "scheme": "skipinit"}, {"rate": 1e6, "scheme": "none"}
    configs = [config, *(TrainConfig.from_dict(config.to_dict() | change) for change in (drawn, wild))]
    together = _rows(tmp_path / "together", configs, lambda: CardExecutor(3))
    single = _rows(tmp_path / "single", configs, lambda: LocalExecutor(1))
    assert together == single
    assert [row["outcome"] for row in together][-1] == "diverged"
