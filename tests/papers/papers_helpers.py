"""Shared by the tests of artefacts: a context, an artefact with other settings, the structure of its evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots import svg_text
from normless_lab.sweeps import Laboratory
from normless_papers.artefact import Budget, Context, Evidence, artefact_of
from normless_papers.claims import Check, Verdict
from normless_papers.evidence import beside


class InThisProcess:
    """An executor without processes, each of which would take seconds to import torch."""

    window = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: Any, group: Hashable = None) -> Future[Any]:
        """Carry out the function at once."""
        future: Future[Any] = Future()
        future.set_result(function(*args))
        return future


def context_in(folder: Path, budget: Budget = "smoke", **changes: Any) -> Context:
    """A context whose laboratory trains in this process and keeps its runs in `folder`."""
    own = folder / "own"
    own.mkdir(parents=True, exist_ok=True)
    laboratory = Laboratory(folder / "lab", executor=InThisProcess)
    return Context(budget=budget, lab=laboratory, directory=own, **changes)


@dataclass(frozen=True)
class CheckedEvidence(Evidence):
    """What an artefact's function returned, and the checks made of its facts."""

    checks: tuple[Check, ...] = ()


def checked(artefact: str, evidence: Evidence) -> CheckedEvidence:
    """Check the claim of an artefact on its evidence."""
    return CheckedEvidence(**vars(evidence), checks=artefact_of(artefact).checks_of(evidence))


def carried_out(artefact: str, context: Context, **changes: Any) -> CheckedEvidence:
    """An artefact with the settings of the context's budget, some of them changed."""
    found = artefact_of(artefact)
    evidence = found.function(context, **{**found.settings[context.budget], **changes})
    return checked(artefact, evidence)


def assert_whole(artefact: str, evidence: CheckedEvidence, *, unmeasured: tuple[str, ...] = ()) -> pd.DataFrame:
    """Every published row has a measured one, the figure draws, checks have numbers; returns the merged table.

    Args:
        unmeasured: keys of published rows that need not be measured, as `on` has them joined by a slash.
    """
    published = artefact_of(artefact).published
    assert len(evidence.measured)
    assert evidence.setup
    assert evidence.checks
    for check in evidence.checks:
        assert check.claim.endswith("."), check.claim
        assert check.numbers, check.claim
    if evidence.draw is not None:
        axes = evidence.draw()
        assert isinstance(axes, Axes)
        assert "<svg" in svg_text(axes)
    if published.rows:
        assert evidence.on, "published numbers stand beside measured ones"
    merged = beside(published.rows, evidence.measured, evidence.on)
    if evidence.on and published.rows:
        own = [name for name in evidence.measured.columns if name not in evidence.on]
        names = [name if name in merged.columns else f"{name}_measured" for name in own]
        keys = {"/".join(_text(row[name]) for name in evidence.on) for row in published.rows}
        for _, row in merged.iterrows():
            key = "/".join(str(row[name]) for name in evidence.on)
            if key in keys and key not in unmeasured:
                assert row[names].notna().any(), f"nothing measured beside the published row {key}"
    return merged


def check_of(evidence: CheckedEvidence, words: str) -> Check:
    """Return the only check whose claim has these words."""
    found = [check for check in evidence.checks if words in check.claim]
    assert len(found) == 1, [check.claim for check in evidence.checks]
    return found[0]


def assert_finite(numbers: Any) -> None:
    """No number is NaN or infinite."""
    assert all(math.isfinite(float(number)) for number in numbers)


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """Return `fails` if any check fails, else `inconclusive` if any is or there are none, else `holds`."""
    verdicts = {own.verdict for own in checks}
    return "fails" if "fails" in verdicts else "holds" if verdicts == {"holds"} else "inconclusive"
