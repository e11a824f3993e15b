"""What a diagnosis is made of: checks, their findings, and cures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from normless.output import jsonable

Evidence = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Cure:
    """What mends a finding.

    Attributes:
        words: what to do, with the call that does it.
        schemes: texts of the schemes that do, those that the network offers places for, the first one best; empty
            where the cure is no edit.
    """

    words: str
    schemes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something that keeps a network from training, or will.

    Attributes:
        kind: a name for machines, as `growing_variance`.
        severity: from 0 to 1; findings are ranked by it.
        title: the finding in plain words, with its most telling number.
        evidence: measured numbers by name, predicted ones among them.
        where: qualified names of the blocks, layers or parameters it concerns.
        theory: why that is bad, and the paper that says so.
        cure: what mends it.
    """

    kind: str
    severity: float
    title: str
    evidence: Evidence
    where: tuple[str, ...]
    theory: str
    cure: Cure

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        told: dict[str, Any] = jsonable(asdict(self) | {"evidence": dict(self.evidence)})
        return told


@dataclass(frozen=True)
class Check:
    """One question that was put to a network.

    Attributes:
        name: of the check.
        summary: what was measured, in words and numbers, whether or not it is a finding.
        findings: empty where nothing is wrong.
        asked: False where the question does not arise, or could not be put.
    """

    name: str
    summary: str
    findings: tuple[Finding, ...] = ()
    asked: bool = True
