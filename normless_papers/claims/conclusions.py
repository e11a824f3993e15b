"""The verdicts on an artefact in its set-up: of its shape, of printed numbers, and of what the text adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from normless_papers.claims.checks import Aspect, Basis, Check

Conclusion = Literal["reproduced", "implemented", "contradicted", "not seen here"]
CONCLUSIONS: tuple[Conclusion, ...] = get_args(Conclusion)


def conclusion_of(
    checks: Sequence[Check], aspect: Aspect, *, decisive: bool, basis: Basis | Literal[""] = ""
) -> Conclusion | None:
    """Return the verdict by the checks of an aspect, or None if there are none.

    `reproduced` if all of them hold, or `implemented` if they compare our code with a formula, which no experiment
    can refute; `contradicted` if one of them fails in a set-up that can contradict the paper (see `obstacle_of`),
    else `not seen here`.
    """
    verdicts = {check.verdict for check in checks if check.of == aspect}
    if verdicts == {"holds"}:
        return "implemented" if basis == "formula" else "reproduced"
    return ("contradicted" if "fails" in verdicts and decisive else "not seen here") if verdicts else None


def obstacle_of(checks: Sequence[Check], basis: Basis | Literal[""], *, of_same_kind: bool) -> str:
    """Return why failed checks do not contradict the paper, as a clause; empty if they do.

    They contradict it if it is a formula, or if the paper's own phenomenon is present: measurements must be of the
    paper's kind of data and network. Training runs must also have at least one premise, such as a control that
    reached what it reaches when trained on, and all premises must hold.
    """
    if basis == "formula":
        return ""
    if not of_same_kind:
        return "data or network are of another kind than the paper's"
    premises = {check.verdict for check in checks if check.of == "premise"}
    if basis == "training" and not premises:
        return "it is not known what the control reaches when trained on"
    return "" if premises <= {"holds"} else "the control did not reach what it reaches when trained on"
