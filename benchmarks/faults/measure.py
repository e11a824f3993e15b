"""Ask a diagnoser about every case, each in a process with a time limit, and keep the answers as JSON lines."""

import json
import multiprocessing
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError as LimitReached
from dataclasses import asdict
from pathlib import Path

import torch
from pebble import ProcessExpired, ProcessPool

from benchmarks.faults.case import MODULES, Case, Loop, all_cases
from benchmarks.faults.rivals import Rival, rival
from benchmarks.faults.score import Answer, Variant, verdicts


def asked(diagnoser: Rival, case: Case, variant: Variant) -> Answer:
    """Return the answer of a diagnoser, in this process; exceptions become the answer's error."""
    training = case.build(broken=variant == "broken")
    begin = time.perf_counter()
    texts: Sequence[str] = ()
    error = ""
    torch.manual_seed(2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(training, Loop):
                texts = diagnoser.watch(training) if diagnoser.watch else ()
            elif diagnoser.diagnose:
                texts = diagnoser.diagnose(training.model, training.batch, training.loss, training.optimizer)
    except Exception as exception:
        place = traceback.extract_tb(exception.__traceback__)[-1]
        error = f"{type(exception).__name__}: {exception} ({Path(place.filename).name}:{place.lineno})"
    return Answer(case.name, variant, tuple(texts), error, time.perf_counter() - begin)


def _in_process(diagnoser: str, name: str, variant: Variant) -> Answer:
    torch.set_num_threads(1)
    (case,) = all_cases(names=[name])
    return asked(rival(diagnoser), case, variant)


def applies(diagnoser: Rival, case: Case) -> bool:
    """Return whether the diagnoser takes trainings, or loops, of the kind of the case."""
    return (diagnoser.watch if case.in_loop else diagnoser.diagnose) is not None


def answers(diagnoser: str, cases: Sequence[Case], workers: int = 1, seconds: float = 300.0) -> Iterator[Answer]:
    """Ask about the broken training and the twin of every case, and about every healthy one, each in a process.

    Args:
        diagnoser: a name of `RIVALS`, or module:function.
        cases: the cases.
        workers: the number of processes at once.
        seconds: the time limit of one question.
    """
    chosen = [case for case in cases if applies(rival(diagnoser), case)]
    questions: list[tuple[Case, Variant]] = []
    for case in chosen:
        variants: tuple[Variant, ...] = ("broken", "twin") if case.truth else ("healthy",)
        questions += [(case, variant) for variant in variants]
    context = multiprocessing.get_context("forkserver")
    modules = [f"benchmarks.faults.{name}" for name in MODULES]
    package = rival(diagnoser).package
    context.set_forkserver_preload(["torch._dynamo", "benchmarks.faults.measure", *modules, package])
    with ProcessPool(max_workers=workers, max_tasks=1, context=context) as pool:
        waiting = [
            (case, variant, pool.schedule(_in_process, args=[diagnoser, case.name, variant], timeout=seconds))
            for case, variant in questions
        ]
        for case, variant, future in waiting:
            try:
                yield future.result()
            except LimitReached:
                yield Answer(case.name, variant, error=f"no answer within {seconds:.0f} s", seconds=seconds)
            except ProcessExpired as expired:
                yield Answer(case.name, variant, error=f"the process died: {expired}")


def line(diagnoser: str, case: Case, answer: Answer) -> str:
    """Return the answer, with what the benchmark knows of the case, as one line of JSON."""
    known = {"diagnoser": diagnoser, "half": case.half, "kind": case.kind, "source": case.source.collection}
    record = known | asdict(answer) | {"verdicts": verdicts(case, answer)}
    return json.dumps(record, ensure_ascii=False)


def measured(diagnoser: str, cases: Sequence[Case], out: Path | None, workers: int, seconds: float) -> list[Answer]:
    """Ask about all cases, write every answer to `out` as it comes, and return them."""
    by_name = {case.name: case for case in cases}
    kept = []
    for answer in answers(diagnoser, cases, workers, seconds):
        kept.append(answer)
        text = line(diagnoser, by_name[answer.case], answer)
        if out is None:
            continue
        with out.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        sys.stderr.write(f"{len(kept):4} {answer.case} ({answer.variant}) {answer.seconds:.1f} s\n")
    return kept
