"""The scorer: ask a diagnoser about every row, and count causes named, symptoms, wrong answers and false alarms."""

from __future__ import annotations

import json
import multiprocessing
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as LimitReached
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pebble import ProcessExpired, ProcessPool

from tests.faults.catalogue import Case, Loop, Training, catalogue, modules
from tests.faults.diagnosers import Diagnoser, diagnoser_of
from tests.faults.truth import Verdict

Variant = Literal["broken", "twin", "healthy"]


@dataclass(frozen=True)
class Answer:
    """Hold what a diagnoser said of one training of a row: its ranked findings, or its exception or time-out."""

    case: str
    variant: Variant
    texts: Sequence[str] = ()
    error: str = ""


# Of broken trainings: those asked; with any finding; whose first finding names the cause; of which any finding does;
# whose first finding names a symptom, or neither; without a finding and an error. Of repaired and healthy trainings:
# those asked; with any finding. Over all: exceptions and time-outs.
COUNTED = (
    *("broken", "detected", "right first", "named", "symptom first", "wrong first", "silent"),
    *("clean", "false alarms", "errors"),
)


def applies(diagnoser: Diagnoser, case: Case) -> bool:
    """Return whether the diagnoser takes trainings, or loops, of the kind of the row, and can name its cause.

    Causes that are kinds of findings are named by normless alone.
    """
    in_words = case.truth is None or not case.truth.is_kinds
    return (diagnoser.watch if case.in_loop else diagnoser.diagnose) is not None and (
        diagnoser.name == "normless" or (in_words and case.source.collection != "kinds")
    )


def asked(diagnoser: Diagnoser, case: Case, variant: Variant, **options: Any) -> Answer:
    """Return the answer of a diagnoser, in this process; exceptions become the answer's error.

    Options are further arguments of `normless.diagnose`.
    """
    training = case.build(broken=variant == "broken")
    if isinstance(training, Training):
        training.options = {**training.options, **options}
    texts: Sequence[str] = ()
    torch.manual_seed(2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(training, Loop):
                texts = diagnoser.watch(training) if diagnoser.watch else ()
            elif diagnoser.diagnose:
                texts = diagnoser.diagnose(training)
    except Exception as exception:
        place = traceback.extract_tb(exception.__traceback__)[-1]
        error = f"{type(exception).__name__}: {exception} ({Path(place.filename).name}:{place.lineno})"
        return Answer(case.name, variant, (), error)
    return Answer(case.name, variant, tuple(texts))


def _in_process(diagnoser: str, name: str, variant: Variant) -> Answer:
    torch.set_num_threads(1)
    (case,) = catalogue(names=[name])
    return asked(diagnoser_of(diagnoser), case, variant)


def answers(name: str, cases: Sequence[Case], workers: int = 1, seconds: float = 300.0) -> Iterator[Answer]:
    """Ask a diagnoser of this name about every training of the rows, each in a process with a time limit."""
    diagnoser = diagnoser_of(name)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "tests.faults.scorer", *modules(), diagnoser.package])
    with ProcessPool(max_workers=workers, max_tasks=1, context=context) as pool:
        waiting = [
            (case, variant, pool.schedule(_in_process, args=[name, case.name, variant], timeout=seconds))
            for case in cases
            if applies(diagnoser, case)
            for variant in case.variants
        ]
        for case, variant, future in waiting:
            try:
                yield future.result()
            except LimitReached:
                yield Answer(case.name, variant, error=f"no answer within {seconds:.0f} s")
            except ProcessExpired as expired:
                yield Answer(case.name, variant, error=f"the process died: {expired}")


def verdicts(case: Case, answer: Answer) -> list[Verdict]:
    """Return for every text whether it names the cause, a symptom, or neither."""
    return [case.truth.verdict(text) for text in answer.texts] if case.truth else ["wrong" for _ in answer.texts]


def measured(name: str, cases: Sequence[Case], out: Path | None, workers: int, seconds: float) -> list[Answer]:
    """Ask about all rows, write every answer to `out` as a line of JSON as it comes, and return them."""
    by_name = {case.name: case for case in cases}
    kept = []
    for answer in answers(name, cases, workers, seconds):
        kept.append(answer)
        if out is not None:
            case = by_name[answer.case]
            known = {"diagnoser": name, "half": case.half, "kind": case.kind, "source": case.source.collection}
            known |= {**asdict(answer), "verdicts": verdicts(case, answer)}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known, ensure_ascii=False) + "\n")
            sys.stderr.write(f"{len(kept):4} {answer.case} ({answer.variant})\n")
    return kept


def score(cases: dict[str, Case], given: Iterable[Answer]) -> Counter[str]:
    """Return the counts of answers; a text counts after an error too."""
    counts: Counter[str] = Counter()
    for answer in given:
        counts["errors"] += bool(answer.error)
        if answer.variant != "broken":
            counts["clean"] += 1
            counts["false alarms"] += bool(answer.texts)
            continue
        found = verdicts(cases[answer.case], answer)
        counts["broken"] += 1
        counts["detected"] += bool(found)
        counts["named"] += "cause" in found
        counts["silent"] += not found and not answer.error
        if found:
            counts[{"cause": "right first"}.get(found[0], f"{found[0]} first")] += 1
    return counts


def table(cases: dict[str, Case], given: Sequence[Answer]) -> str:
    """Return the scores by set and half, by place of the fault, by source and by kind, as a table of text."""
    groups: list[Callable[[Case], str]] = [
        lambda case: "all",
        lambda case: f"{case.set}, {case.half}",
        lambda case: "place " + ("loop" if case.in_loop else "training"),
        lambda case: f"source {case.source.collection}",
        lambda case: f"kind {case.kind}" if case.set == "published" else "",
    ]
    lines = [f"{'group':28}" + "".join(f"{name:>15}" for name in COUNTED)]
    for key in groups:
        for value in sorted({key(cases[answer.case]) for answer in given} - {""}):
            row = score(cases, [answer for answer in given if key(cases[answer.case]) == value])
            lines.append(f"{value:28}" + "".join(f"{cell:>15}" for cell in _cells(row)))
    return "\n".join(lines)


def _cells(row: Counter[str]) -> list[str]:
    cells = []
    for name in COUNTED:
        total = row["clean" if name == "false alarms" else "broken"]
        share = f"{row[name]:4} {100 * row[name] / total:4.0f} %" if total else ""
        cells.append(str(row[name]) if name in ("broken", "clean", "errors") else share)
    return cells
