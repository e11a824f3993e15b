"""What a sweep must keep; every message names the place in the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from normless.errors import NormlessError
from normless.sweeps.run_types import kind_of

if TYPE_CHECKING:
    from normless.sweeps.sweep import Sweep

# Columns of the table of runs; an axis of that name would hide one.
RESERVED = (
    "rate",
    "seed",
    "hash",
    "outcome",
    "error",
    "test_accuracy",
    "test_accuracy_top5",
    "test_loss",
    "training_loss",
    "training_loss_with_l2",
    "bleu",
    "validation_bleu",
    "seconds_per_epoch",
    "steps",
    "parameters",
    "diverged_step",
)


class SweepError(NormlessError, ValueError):
    """A sweep is not one; the message names the place in it, what was expected and what came."""


def check_sweep(sweep: Sweep) -> None:
    """See that a sweep has runs, and that each of its combinations can be configured.

    Raises:
        SweepError: it does not.
    """
    for name in ("replicates", "best"):
        if getattr(sweep, name) < 1:
            raise SweepError(f"Expected {name} of 1 or more, got {getattr(sweep, name)}.")
    if sweep.best > sweep.replicates:
        raise SweepError(
            f"The best {sweep.best} of {sweep.replicates} replicates cannot be taken; lower best or raise replicates."
        )
    if sweep.seed < 0:
        raise SweepError(f"Expected a first seed of 0 or more, got {sweep.seed}.")
    _check_settings(sweep)
    _check_exclusions(sweep)
    if not sweep.combinations:
        raise SweepError(
            f"The sweep {sweep.name} has no combination to run: all are excluded, or an axis has no label."
        )
    _check_combinations(sweep)


def _check_settings(sweep: Sweep) -> None:
    """Every setting is one of the kind of run."""
    known = [one.name for one in fields(kind_of(sweep.run).settings_class())]
    fixed = sorted({"rate", "seed"} & set(sweep.base))
    if fixed:
        raise SweepError(f"base sets {' and '.join(fixed)}, which the sweep's rates and seed are there for.")
    _check_known("base", sweep.base, known)
    for axis, labels in sweep.axes.items():
        if axis in RESERVED:
            raise SweepError(f"An axis cannot be called {axis}: the table of runs has a column of that name.")
        for label, settings in labels.items():
            if "seed" in settings:
                raise SweepError(
                    f"axes.{axis}.{label} sets seed, which the sweep's seed and replicates are there for."
                )
            _check_known(f"axes.{axis}.{label}", settings, known)


def _check_known(place: str, settings: Mapping[str, Any], known: list[str]) -> None:
    for name in settings:
        if name not in known:
            close = get_close_matches(str(name), known, n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else f"the settings are {', '.join(known)}."
            raise SweepError(f"{place} sets {name!r}, which is no setting of these runs; {hint}")


def _check_exclusions(sweep: Sweep) -> None:
    for place, labels in enumerate(sweep.exclude, 1):
        if not labels:
            raise SweepError(f"Entry {place} of exclude names no label, and so would leave out everything.")
        for axis, label in labels.items():
            if axis not in sweep.axes:
                raise SweepError(f"exclude names the axis {axis!r}; the axes are {', '.join(sweep.axes) or 'none'}.")
            if label not in sweep.axes[axis]:
                raise SweepError(
                    f"exclude names {label!r} of the axis {axis}, which has {', '.join(sweep.axes[axis])}."
                )


def _check_combinations(sweep: Sweep) -> None:
    """The configuration of every combination can be made, at its first rate and seed."""
    kind = kind_of(sweep.run).settings_class()
    for labels in sweep.combinations:
        try:
            rate = sweep.rates_of(labels).rates[0]
            kind.from_dict(sweep.settings(labels) | {"rate": rate, "seed": sweep.seed})
        except (ValueError, TypeError) as error:
            where = ", ".join(f"{axis} {label}" for axis, label in sweep.named(labels).items())
            raise SweepError(f"The runs {f'of {where} ' if where else ''}cannot be configured: {error}") from error
