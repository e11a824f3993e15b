"""Score the answers of a diagnoser: causes named, symptoms, wrong and silent answers, false alarms, errors."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.faults.case import Case
from benchmarks.faults.truth import Verdict

Variant = Literal["broken", "twin", "healthy"]


@dataclass(frozen=True)
class Answer:
    """Hold what a diagnoser said of one training.

    Attributes:
        case: the name of the case.
        variant: whether the training was broken, the repaired twin, or a healthy odd one.
        texts: the findings, ranked.
        error: the exception that the diagnoser raised, or that it ran out of time; empty if neither.
        seconds: how long it took.
    """

    case: str
    variant: Variant
    texts: Sequence[str] = field(default_factory=tuple)
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Score:
    """Count the answers of one group of cases.

    Attributes:
        broken: broken trainings asked.
        detected: those with any finding.
        right_first: those whose first finding names the cause.
        named: those of which any finding names the cause.
        symptom_first: those whose first finding names a symptom only.
        wrong_first: those whose first finding names neither.
        silent: those without a finding and without an error.
        clean: repaired and healthy trainings asked.
        false_alarms: those with any finding.
        errors: exceptions and time-outs, over all.
    """

    broken: int = 0
    detected: int = 0
    right_first: int = 0
    named: int = 0
    symptom_first: int = 0
    wrong_first: int = 0
    silent: int = 0
    clean: int = 0
    false_alarms: int = 0
    errors: int = 0


def verdicts(case: Case, answer: Answer) -> list[Verdict]:
    """Return for every text whether it names the cause, a symptom, or neither."""
    return [case.truth.verdict(text) for text in answer.texts] if case.truth else ["wrong" for _ in answer.texts]


def score(cases: dict[str, Case], answers: Iterable[Answer]) -> Score:
    """Return the score of answers; a text counts after an error too."""
    counts = dict.fromkeys(Score.__dataclass_fields__, 0)
    for answer in answers:
        counts["errors"] += bool(answer.error)
        if answer.variant != "broken":
            counts["clean"] += 1
            counts["false_alarms"] += bool(answer.texts)
            continue
        found = verdicts(cases[answer.case], answer)
        counts["broken"] += 1
        counts["detected"] += bool(found)
        counts["named"] += "cause" in found
        counts["silent"] += not found and not answer.error
        if found:
            counts[{"cause": "right_first", "symptom": "symptom_first", "wrong": "wrong_first"}[found[0]]] += 1
    return Score(**counts)


def table(cases: dict[str, Case], answers: Sequence[Answer]) -> str:
    """Return the scores by half, by place of the fault, by published set and by kind, as a table of text."""
    groups: list[tuple[str, Callable[[Case], str]]] = [
        ("all", lambda case: "all"),
        ("half", lambda case: case.half),
        ("place", lambda case: "loop" if case.in_loop else "training"),
        ("source", lambda case: case.source.collection),
        ("kind", lambda case: case.kind),
    ]
    head = (
        "group",
        "broken",
        "detected",
        "right first",
        "named",
        "symptom first",
        "wrong first",
        "silent",
        "clean",
        "false alarms",
        "errors",
    )
    lines = ["  ".join(f"{title:>13}" if place else f"{title:24}" for place, title in enumerate(head))]
    for title, key in groups:
        for value in sorted({key(cases[answer.case]) for answer in answers}):
            row = score(cases, [answer for answer in answers if key(cases[answer.case]) == value])
            lines.append("  ".join([f"{title + ' ' + value if title != value else value:24}", *_cells(row)]))
    return "\n".join(lines)


def _cells(row: Score) -> list[str]:
    def share(count: int, total: int) -> str:
        return f"{count:4} {100 * count / total:4.0f} %" if total else ""

    named = [row.detected, row.right_first, row.named, row.symptom_first, row.wrong_first, row.silent]
    cells = [str(row.broken), *(share(count, row.broken) for count in named)]
    cells += [str(row.clean), share(row.false_alarms, row.clean), str(row.errors)]
    return [f"{cell:>13}" for cell in cells]
