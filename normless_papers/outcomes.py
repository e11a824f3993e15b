"""Training runs outside a sweep, as a table of how they ended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from normless.train import Settings

if TYPE_CHECKING:
    from normless_papers.artefact import Context

NUMBERS = ("test_accuracy", "chance_accuracy", "test_loss", "steps", "diverged_step")


def outcome_table(context: Context, runs: Iterable[tuple[Mapping[str, Any], Settings]]) -> pd.DataFrame:
    """Carry out runs, each with labels of its own, and say how they ended.

    Args:
        context: whose laboratory carries them out; finished ones are not run again.
        runs: labels, which become columns, and the configuration.

    Returns:
        A row per run: its labels, `rate`, `seed`, `outcome` (trained, chance, diverged or failed), `test_accuracy`
        and `chance_accuracy` in percent, `test_loss`, `steps` taken, `diverged_step`, and `error` of a failed run.
    """
    wanted = list(runs)
    rows = []
    for (labels, config), row in zip(wanted, context.lab.carry_out([one for _, one in wanted]), strict=True):
        result = row.result or {}
        numbers = {name: math.nan if result.get(name) is None else float(result[name]) for name in NUMBERS}
        for name in ("test_accuracy", "chance_accuracy"):
            numbers[name] *= 100
        about = {"rate": config.rate, "seed": config.seed, "outcome": row.outcome}
        rows.append({**labels, **about, **numbers, "error": row.error})
    return pd.DataFrame(rows)
