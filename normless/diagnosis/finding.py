"""The parts of a diagnosis: checks, their findings, and cures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from normless.output import jsonable

Evidence = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Cure:
    """A repair of a finding.

    Attributes:
        words: what to do, with the call that does it.
        schemes: texts of the schemes that repair it and fit the network, the best one first; empty if no edit does.
    """

    words: str
    schemes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A cause that keeps a network from training, now or later.

    Attributes:
        kind: an identifier, as `growing_variance`.
        severity: from 0 to 1; findings are ranked by it.
        title: one sentence with the most important number.
        evidence: measured and predicted numbers by name.
        where: qualified names of the blocks, layers or parameters concerned.
        theory: why it is a problem, with the paper.
        cure: the repair.
    """

    kind: str
    severity: float
    title: str
    evidence: Evidence
    where: tuple[str, ...]
    theory: str
    cure: Cure

    def to_dict(self) -> dict[str, Any]:
        """The finding as data ready for JSON."""
        data: dict[str, Any] = jsonable(asdict(self) | {"evidence": dict(self.evidence)})
        return data


@dataclass(frozen=True)
class Check:
    """One check of a network.

    Attributes:
        name: of the check.
        summary: the measurement in words and numbers, whether or not it is a finding.
        findings: empty if nothing is wrong.
        asked: False if the check does not apply or could not be made.
    """

    name: str
    summary: str
    findings: tuple[Finding, ...] = ()
    asked: bool = True
