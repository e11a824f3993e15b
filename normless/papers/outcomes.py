"""Single training runs that a claim about gross facts rests on: which networks train at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from normless.papers.verdict import Check, check
from normless.training.settings import Settings

if TYPE_CHECKING:
    from normless.papers.artefact import Context

NUMBERS = ("test_accuracy", "chance_accuracy", "test_loss", "steps", "diverged_step")


def outcome_table(context: Context, runs: Iterable[tuple[Mapping[str, Any], Settings]]) -> pd.DataFrame:
    """Carry out runs, each with labels of its own, and say how they ended.

    Args:
        context: whose laboratory carries them out; finished ones are not run again.
        runs: labels, which become columns, and the configuration.

    Returns:
        A row per run: its labels, `rate`, `seed`, `outcome` (trained, chance, diverged or failed), `test_accuracy`
        and `chance_accuracy` (0..1), `test_loss`, `steps` taken, `diverged_step`, and `error` of a failed run.
    """
    wanted = list(runs)
    rows = []
    for (labels, config), row in zip(wanted, context.lab.carry_out([one for _, one in wanted]), strict=True):
        result = row.result or {}
        numbers = {name: math.nan if result.get(name) is None else float(result[name]) for name in NUMBERS}
        about = {"rate": config.rate, "seed": config.seed, "outcome": row.outcome}
        rows.append({**labels, **about, **numbers, "error": row.error})
    return pd.DataFrame(rows)


def all_trained(claim: str, runs: pd.DataFrame) -> Check:
    """That every run trained; runs that failed with an error, and an empty table, decide nothing."""
    return _all(claim, runs, runs["outcome"] == "trained")


def none_trained(claim: str, runs: pd.DataFrame) -> Check:
    """That every run diverged or stayed at chance; runs that failed with an error decide nothing."""
    return _all(claim, runs, runs["outcome"].isin(["diverged", "chance"]))


def _all(claim: str, runs: pd.DataFrame, wanted: pd.Series) -> Check:
    counts = runs["outcome"].value_counts()
    undecided = runs.empty or "failed" in counts
    numbers = {name: float(counts.get(name, 0)) for name in ("trained", "chance", "diverged", "failed")}
    low, high = runs["test_accuracy"].min(), runs["test_accuracy"].max()
    return check(
        claim, None if undecided else bool(wanted.all()), **numbers, lowest_accuracy=low, highest_accuracy=high
    )
