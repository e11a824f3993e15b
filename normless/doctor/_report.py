"""The report of a diagnosis: ten lines that fit on a screen, and all that was measured in `full()`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import fill, shorten, wrap
from typing import Any, ClassVar

import pandas as pd

from normless._internal.html import html_table
from normless.doctor._findings import Check, Cure, Finding, in_order
from normless.residual import Unresolved

_WIDTH = 110
# Lines of the short report for each of its parts.
_OF_CAUSE, _OF_EVIDENCE, _OF_CURE = 2, 2, 3


@dataclass(frozen=True)
class Diagnosis:
    """The checks of a network with their findings, the blocks that could not be measured, and the number of batches.

    `tables` are what the checks read: `operations` with their lines of code, `layers`, `blocks`, `classes`, `loss`,
    `batch`, `parameters` and `trials`.
    `print(diagnosis)` shows at most ten lines: the cause, its place, the evidence, the cure, what was not looked at.
    """

    nothing: ClassVar[str] = "Nothing was found that keeps it from training"
    aside: ClassVar[str] = "advice (the network trains without it):"
    checks: tuple[Check, ...]
    missed: tuple[Unresolved, ...]
    batches: int = 1
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings that keep the network from training, the most severe first."""
        return tuple(found for found in self._ranked() if not found.advice)

    @property
    def advice(self) -> tuple[Finding, ...]:
        """The findings that do not keep the network from training, such as which γ to decay."""
        return tuple(found for found in self._ranked() if found.advice)

    def _ranked(self) -> list[Finding]:
        return in_order(found for check in self.checks for found in check.findings)

    @property
    def healthy(self) -> bool:
        """Whether there are no findings; advice is not counted."""
        return not self.findings

    @property
    def scheme(self) -> str | None:
        """The best scheme of the most severe finding that a scheme repairs, or None."""
        return next(iter(self.cure.schemes), None)

    @property
    def cure(self) -> Cure:
        """The cure of the most severe finding that a scheme repairs; an empty one if there is none."""
        return next((found.cure for found in self.findings if found.cure.schemes), Cure(""))

    @property
    def verdict(self) -> str:
        """One line: why the network does not train and what to try, or how many checks found nothing."""
        if self.findings:
            first = self.findings[0]
            return f"{first.title} Try: {first.cure.words}."
        of = "one batch" if self.batches == 1 else f"{self.batches} batches"
        return f"{self.nothing}: {sum(check.asked for check in self.checks)} checks of {of}."

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as data for JSON."""
        return {
            "healthy": self.healthy,
            "verdict": self.verdict,
            "checks": [
                {"name": check.name, "summary": check.summary, "asked": check.asked, "verdict": check.verdict}
                for check in self.checks
            ],
            "findings": [found.to_dict() for found in self.findings],
            "advice": [found.to_dict() for found in self.advice],
            "missed": [{"path": block.path, "reason": block.reason} for block in self.missed],
        }

    def __str__(self) -> str:
        head, rows = self._short()
        lines = [*_clipped(head, _OF_CAUSE)]
        for name, text in rows:
            mark = f"  {name}: "
            most = _OF_EVIDENCE if name == "evidence" else _OF_CURE if name.startswith("cure") else 1
            first, *rest = _clipped(text, most, len(mark))
            lines += [mark + first, *(f"    {line}" for line in rest)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.findings)} findings, {len(self.checks)} checks)"

    def _repr_html_(self) -> str:
        head, rows = self._short()
        return html_table(head, (), rows)

    def _short(self) -> tuple[str, list[tuple[str, str]]]:
        """Return the verdict, and the parts of the short report by name."""
        rows: list[tuple[str, str]] = []
        head = self.verdict
        if self.findings:
            first = self.findings[0]
            head = first.title
            more = f" and {len(first.where) - 1} more" if len(first.where) > 1 else ""
            where = [f"{first.where[0]}{more}"] if first.where else []
            if place := ", ".join([*where, *([first.line] if first.line and first.line not in head else [])]):
                rows.append(("where", place))
            if first.evidence:
                rows.append(("evidence", _numbers(first)))
            rows.append((f"cure, {'tried' if first.cure.is_tried else 'not tried'}", first.cure.words))
            if len(self.findings) > 1:
                rows.append(("also found", _named(self.findings[1:])))
        if self.advice:
            rows.append(("advice", _named(self.advice)))
        skipped = sum(not check.asked and not check.is_left_out for check in self.checks)
        left = ", ".join(check.name for check in self.checks if check.is_left_out)
        also = f"; left out by the budget: {left}" if left else ""
        also += f"; {skipped} checks did not apply" if skipped else ""
        rows.append(("not looked at", f"{self._unseen}{also}; see full()"))
        return head, rows

    @property
    def _unseen(self) -> str:
        """What no check looks at, in words."""
        batches = "other batches (pass a loader), " if self.batches == 1 else ""
        return f"{batches}the schedule, a critic"

    def full(self, *, why: bool = True) -> str:
        """Return the verdict, the findings (with their theory if `why`), and the checks with their measurements."""
        parts = [fill(self.verdict, _WIDTH)]
        for number, found in enumerate(self.findings, 1):
            parts += ["", *_lines(f"{number}. ", found, why)]
        if self.advice:
            parts += ["", self.aside]
            parts += [line for found in self.advice for line in _lines("- ", found, why)]
        for title, asked in (("checked:", True), ("not checked:", False)):
            checks = [check for check in self.checks if check.asked is asked]
            parts += ["", title, *(f"  {check.name}: {check.summary}" for check in checks)] if checks else []
        if self.missed:
            parts += ["", f"not measured: {', '.join(map(str, self.missed[:3]))}{', …' * (len(self.missed) > 3)}"]
        return "\n".join(parts)


def _numbers(found: Finding) -> str:
    """Return the evidence of a finding in one line."""
    return ", ".join(
        f"{name.replace('_', ' ')} {_written(value)}"
        for name, value in found.evidence.items()
        if name not in ("line", "message")
    )


def _written(value: float | int | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _named(findings: tuple[Finding, ...]) -> str:
    """Return the kinds of findings with their first places."""
    names = dict.fromkeys(found.kind + (f" ({found.where[0]})" if found.where else "") for found in findings)
    return ", ".join(names)


def _clipped(text: str, most: int, used: int = 0) -> list[str]:
    """Return at most so many lines of a text; `used` characters of the first are taken."""
    lines = wrap(text, _WIDTH, initial_indent=" " * used, subsequent_indent="") or [""]
    if len(lines) > most:
        width = _WIDTH - used if most == 1 else _WIDTH
        lines[most - 1 :] = [shorten(" ".join(lines[most - 1 :]), width, placeholder=" …")]
    return [lines[0].lstrip() if used else lines[0], *lines[1:]]


def _lines(mark: str, found: Finding, why: bool) -> Iterator[str]:
    """Format a finding as wrapped lines."""
    evidence = (f"{name} {_written(value)}" for name, value in found.evidence.items())
    schemes = f" [{', '.join(found.cure.schemes)}]" if found.cure.schemes else ""
    lines = [mark + found.title, f"   evidence: {', '.join(evidence)}"] if found.evidence else [mark + found.title]
    lines += [f"   line: {found.line}"] if found.line else []
    lines += [f"   theory: {found.theory}"] if why else []
    for line in (*lines, f"   cure: {found.cure.words}{schemes}"):
        yield fill(line, _WIDTH, subsequent_indent="   ")
