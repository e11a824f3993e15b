"""The claims on finished runs, as YAML files declare them.

A row of `claims` has a `claim` and one comparison:

- `above: [term, term]`, and perhaps `by`: see `larger`; `below: [term, term]` is its reverse; `near: [term, expected,
  tolerance]`; `within: [term, low, high]`;
- `trains: labels` or `fails: labels`, with the labels of the control as `against`, and perhaps its `least` gain: see
  `Runs.trains` and `Runs.does_not_train`;
- `stable: labels`: no run with these labels diverges; inconclusive below three runs.

A term is a number, `{COLUMN: labels}` for `Runs.final`, `{accuracy: labels}` for the accuracy at the best rate,
`{optimum: [METRIC, labels]}` for `Runs.optimum`, `{times: [factor, term]}`, `{difference: [term, term]}`, `{mean:
[term, term]}`, or `{named: [name, term]}`. Labels are values by axis; `rate: best` is the rate with
the best accuracy, and `depth: smallest` the smallest depth that was run.

`over: {depth: {from: 101}}` stands for a claim at each depth from 101 on, `{to: 100}` up to 100, and `{after: 1}`
without the smallest one; the depth is added to the labels and replaces `{depth}` in the claim, `{smallest}` is the
smallest. `scale: number` or `scale: shape` leaves the claim open in a smaller set-up, see `at_scale`; `single` is the
known deviation of a single run of the paper's set-up; `control: labels` leaves the claim open unless runs with these
labels make half of the possible gain; `all: {COLUMN: {axis: [label, …]}}` unless that column is true of all of these
runs, with the reason as `why`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import pandas as pd

from normless_lab.sweeps import SHARE
from normless_papers.claims import (
    Claim,
    Estimate,
    at_scale,
    check,
    combined,
    difference,
    in_every,
    larger,
    near,
    not_asked,
    within,
)
from normless_papers.claims.declared import ClaimRow
from normless_papers.claims.training import chance_of, is_control, trains

# `normless_papers.experiments.runs.Runs`, whose file imports this one.
Runs: TypeAlias = Any
Labels = Mapping[str, Any]
# Stability takes this many runs.
_RUNS = 3


def claimed_of(runs: Runs, row: ClaimRow) -> list[Claim]:
    """Return the checks of a row on some runs, one for each size that it is about."""
    if "over" not in row:
        return [_claimed(_Sized(runs, row, {}), row["claim"])]
    ((axis, which),) = row["over"].items()
    every = sorted(int(size) for size in runs.labels(axis))
    sizes = [size for size in every if which.get("from", 0) <= size <= which.get("to", math.inf)]
    return [
        _claimed(_Sized(runs, row, {axis: size}), row["claim"].format(**{axis: size}, smallest=every[0]))
        for size in sizes[which.get("after", 0) :]
    ]


class _Sized:
    """The terms of a row at a size."""

    def __init__(self, runs: Runs, row: ClaimRow, size: Labels) -> None:
        self.runs, self.row, self.size = runs, row, size

    def labels(self, given: Labels) -> dict[str, Any]:
        """Return the labels of a term."""
        labels = {**self.size, **given}
        labels |= {axis: min(self.runs.labels(axis)) for axis, value in labels.items() if value == "smallest"}
        if labels.get("rate") == "best":
            others = {name: value for name, value in labels.items() if name != "rate"}
            labels["rate"] = self.runs.best_rate(**others)
        return labels

    def value(self, term: Any) -> Estimate:
        """Return the estimate of a term."""
        if not isinstance(term, Mapping):
            return Estimate(float(term))
        ((name, given),) = term.items()
        if name == "times":
            return self.value(given[1]).scaled(given[0])
        if name == "difference":
            return difference(*map(self.value, given))
        if name == "mean":
            return combined([(0.5, self.value(own)) for own in given])
        if name == "named":
            return replace(self.value(given[1]), name=given[0])
        if name == "optimum":
            best: Estimate = self.runs.optimum(given[0], **self.labels(given[1]))
            return best
        labels = self.labels(given)
        own: Estimate = self.runs.accuracy(**labels) if name == "accuracy" else self.runs.final(name, **labels)
        if "single" not in self.row:
            return own
        known = own.n == 1 and not self.runs.reduction
        return replace(
            Estimate(own.mean, self.row["single"], 1) if known else own, name=str(next(iter(given.values())))
        )


def _claimed(at: _Sized, claim: str) -> Claim:
    runs, row = at.runs, at.row
    found = _compared(at, claim)
    if "control" in row and not is_control(runs.accuracy(**row["control"]), chance_of(runs.table)):
        found = not_asked(found, "batch norm made less than half of the possible gain")
    for column, labels in row.get("all", {}).items():
        ((axis, names),) = labels.items()
        if not runs.table[runs.table[axis].isin(names)][column].eq(True).all():
            found = not_asked(found, row["why"])
    return at_scale(found, runs.reduction, row["scale"]) if "scale" in row else found


def _compared(at: _Sized, claim: str) -> Claim:
    runs, row = at.runs, at.row
    if "above" in row or "below" in row:
        pair = row["above"] if "above" in row else row["below"][::-1]
        return larger(claim, *map(at.value, pair), by=row.get("by", 0.0))
    if "near" in row:
        return near(claim, at.value(row["near"][0]), *row["near"][1:])
    if "within" in row:
        return within(claim, at.value(row["within"][0]), *row["within"][1:])
    if "stable" in row:
        return stable(claim, own := runs.chosen(**at.labels(row["stable"])), own["outcome"] != "diverged")
    against, least = at.labels(row["against"]), row.get("least", SHARE)
    checked: Claim
    if "fails" in row:
        checked = runs.does_not_train(claim, against=against, least=least, **at.labels(row["fails"]))
    elif "single" in row:
        accuracy, control = (at.value({"accuracy": given}) for given in (row["trains"], row["against"]))
        checked = trains(claim, accuracy, control, chance_of(runs.table), least=least)
    else:
        checked = runs.trains(claim, against=against, least=least, **at.labels(row["trains"]))
    return checked


def stable(claim: str, runs: pd.DataFrame, flags: pd.Series) -> Claim:
    """Check that a flag is set for every run that did not raise an error; inconclusive below three such runs."""
    counted = flags[runs["outcome"] != "failed"]
    if counted.empty:
        return check(claim, None, runs=0)
    result = in_every(claim, counted)
    return replace(result, verdict="inconclusive") if len(counted) < _RUNS and result.verdict == "holds" else result
