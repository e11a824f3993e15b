"""Seconds of actions that take turns, and their ratios within a round."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from time import perf_counter

import pandas as pd


def seconds_in_turns(actions: Mapping[str, Callable[[], object]], rounds: int) -> pd.DataFrame:
    """Time actions in turns, each once before that; a row per round and a column of seconds per action.

    Every other round is in reverse order. Garbage is collected before each action, so that none pays for another.
    """
    for action in actions.values():
        action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds):
        for name in list(actions)[:: -1 if turn % 2 else 1]:
            gc.collect()
            start = perf_counter()
            actions[name]()
            times[name].append(perf_counter() - start)
    return pd.DataFrame(times)


def ratio_table(name: str, seconds: pd.DataFrame, ratios: pd.DataFrame) -> pd.DataFrame:
    """A row per action, of tables with a row per round: seconds, and ratios to another action in the same round.

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
