"""Seconds of alternating actions, by the clock or by events on a GPU, and their ratios within a round."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import pandas as pd
import torch

# Seconds of one call of an action.
Timer = Callable[[Callable[[], object]], float]


def wall_seconds(action: Callable[[], object]) -> float:
    """Return the seconds of a call, by the clock."""
    start = perf_counter()
    action()
    return perf_counter() - start


def timer_of(device: torch.device, calls: int = 1) -> Timer:
    """Return a function that times an action on a device: by the clock, or on a GPU by events around some calls.

    On a GPU it returns the mean of the calls; the device is synchronized before the first and after the last.
    """
    if device.type != "cuda":
        return wall_seconds
    cuda: Any = torch.cuda

    def timed(action: Callable[[], object]) -> float:
        with torch.cuda.device(device):
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            for _ in range(calls):
                action()
            end.record()
            end.synchronize()
        milliseconds: float = start.elapsed_time(end)
        return milliseconds / 1000 / calls

    return timed


def seconds_in_turns(
    actions: Mapping[str, Callable[[], object]], rounds: int, timer: Timer = wall_seconds
) -> pd.DataFrame:
    """Time alternating actions after one call of each; a row per round and a column of seconds per action.

    Every other round is in reverse order. Garbage is collected before each action.
    """
    for action in actions.values():
        action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds):
        for name in list(actions)[:: -1 if turn % 2 else 1]:
            gc.collect()
            times[name].append(timer(actions[name]))
    return pd.DataFrame(times)


def ratio_table(name: str, seconds: pd.DataFrame, ratios: pd.DataFrame) -> pd.DataFrame:
    """Return a row per action from seconds and ratios with a row per round.

    Columns: the actions under the name, seconds (median), ratio (median), lowest and highest of the ratios.
    """
    return pd.DataFrame(
        {
            name: seconds.columns,
            "seconds": seconds.median().to_numpy(),
            "ratio": ratios.median().to_numpy(),
            "lowest": ratios.min().to_numpy(),
            "highest": ratios.max().to_numpy(),
        }
    )
