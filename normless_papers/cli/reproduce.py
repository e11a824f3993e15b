"""``normless reproduce``: artefacts of the papers, published beside measured numbers, and verdicts on the claims."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from normless.cli import add_json_flag, answer
from normless.errors import NormlessError
from normless.registry import did_you_mean
from normless_papers.budgets import Budget
from normless_papers.published import PAPERS, Published, published, published_as

if TYPE_CHECKING:
    from normless_papers.cli.text import ReproductionProgress
    from normless_papers.planning.plan import Need, Step
    from normless_papers.results.reproduction import Reproduction

OUT = Path("normless-results")
CLOCK = time.monotonic


def add_arguments(parser: ArgumentParser) -> None:
    """Add the choice of artefacts, the budget, the data and the folder of results."""
    which = parser.add_argument_group("artefacts")
    which.add_argument(
        "ids",
        type=str,
        nargs="*",
        default=[],
        metavar="ID",
        help="ids of artefacts, such as fixup/table-1, or FILE.py:NAME for your own",
    )
    which.add_argument("--all", action="store_true", help="every artefact")
    which.add_argument("--headlines", action="store_true", help="every artefact that a headline claim rests on")
    which.add_argument(
        "--paper", type=str, default=None, help=f"with --all or --list, one paper: {', '.join(PAPERS)}"
    )
    which.add_argument("--list", action="store_true", help="list the artefacts and their verdicts; run nothing")
    how = parser.add_argument_group("execution")
    how.add_argument(
        "--budget",
        type=Budget,
        default="smoke",
        help="smoke: seconds, on digits or generated inputs; small: minutes; gpu: headline claims on one card; "
        "paper: the published setup",
    )
    how.add_argument("--data", type=str, default=None, help="data set instead of the budget's, such as cifar10")
    how.add_argument("--data-root", type=str, default=None, help="folder of the data sets")
    how.add_argument("--seed", type=int, default=0, help="the first seed; replicates count up from it")
    how.add_argument(
        "--weights",
        type=str,
        default=None,
        help="pretrained networks for gamma/figure-5, and to train further for gamma/table-2 and gamma/figure-3: "
        "torchvision, or a folder of normless convert, with model.txt and a state dict, or with state dicts named "
        "after networks of table 2, as resnet50-0676ba61.pth",
    )
    how.add_argument(
        "--workers",
        type=int,
        default=None,
        help="processes that share the cores and, without --together, the cards; by default one per core, and one "
        "per card for runs on cards",
    )
    how.add_argument(
        "--together",
        type=int,
        default=None,
        help="runs at once on a card in one process; by default as many as memory and gain allow",
    )
    how.add_argument(
        "--minutes",
        type=float | None,
        default=None,
        help="the time for runs, those first that decide most claims per minute; unfinished runs are saved, and the "
        "same command goes on",
    )
    how.add_argument("--again", action="store_true", help="carry out artefacts again; training runs are kept")
    how.add_argument("--out", type=Path, default=OUT, help="folder for results, figures and training runs")
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """List artefacts, or carry them out and print them; 1 after an error, which a failing claim is not."""
    if namespace.paper is not None and namespace.paper not in PAPERS:
        meant = did_you_mean(namespace.paper, PAPERS)
        raise NormlessError(f"There is no paper {namespace.paper!r}; choose among {', '.join(PAPERS)}.{meant}")
    entries = [entry for entry in published().values() if namespace.paper in (None, entry.paper)]
    if namespace.list:
        return _list(entries, namespace)
    if [bool(namespace.ids), namespace.all, namespace.headlines].count(True) != 1:
        raise NormlessError(
            "Expected ids of artefacts, such as fixup/table-1, or --all or --headlines; normless reproduce --list "
            "lists them."
        )
    # Before torch is imported; ids of other packages are checked after it.
    for name in namespace.ids:
        if ":" not in name and name not in entry_points(group="normless.artefacts").names:
            published_as(name)
    if not namespace.all:
        from normless_papers.artefact import published_of
        from normless_papers.pages.headline import headline_artefacts

        entries = [published_of(name) for name in dict.fromkeys(namespace.ids or headline_artefacts())]
    from normless_papers.cli.text import ReproductionProgress, in_full, plan_text, summary
    from normless_papers.results.reproduction import folder_of

    # Output of an artefact does not mix with the answer.
    with redirect_stdout(sys.stderr):
        names = [entry.id for entry in entries]
        steps: list[Step] = []
        if namespace.minutes is None:
            with ReproductionProgress(len(names)) as progress:
                results = _carried_out(names, namespace, progress)
        else:
            results, steps = _in_minutes(names, namespace)
    folders = [folder_of(namespace.out, result.id, result.budget) for result in results]
    rows = [result.to_dict() | {"files": str(folder)} for result, folder in zip(results, folders, strict=True)]
    texts = list(map(in_full, results, folders)) if namespace.ids else []
    texts += [summary(results)] if len(results) > 1 else []
    texts += [] if namespace.minutes is None else [plan_text(steps, namespace.minutes)]
    text = "\n\n".join([*texts, f"normless report {namespace.out} makes a page of all results."])
    planned = {} if namespace.minutes is None else {"next": [step.to_dict() for step in steps]}
    answer(namespace, {"out": str(namespace.out), "results": rows} | planned, text)
    return int(any(result.error for result in results))


def _carried_out(
    names: Iterable[str],
    namespace: Namespace,
    progress: ReproductionProgress,
    seconds_left: Callable[[], float] | None = None,
) -> list[Reproduction]:
    """Carry out artefacts, until no seconds are left."""
    from normless_lab.train import TimeLimitError
    from normless_papers.results.reproduce import laboratory_in, reproduce

    results: list[Reproduction] = []
    options = {name: namespace[name] for name in ("out", "data", "data_root", "seed", "weights", "again")}
    with (
        laboratory_in(
            namespace.out,
            namespace.workers,
            progress,
            together=namespace.together,
            seconds_left=seconds_left,
        ) as laboratory,
        suppress(TimeLimitError),
    ):
        for name in names:
            progress.begin(name)
            results.append(reproduce(name, namespace.budget, laboratory=laboratory, **options))
            progress.end(results[-1])
    return results


def _in_minutes(names: Sequence[str], namespace: Namespace) -> tuple[list[Reproduction], list[Step]]:
    """Carry out artefacts in the order of their plan until the minutes are over; return also what is left."""
    from normless_papers.cli.text import ReproductionProgress
    from normless_papers.planning.plan import claims_at, needs_of, steps_of

    claims = claims_at(namespace.budget) if namespace.headlines else {name: (name,) for name in names}
    asked = [name for artefacts in claims.values() for name in artefacts]
    options = {name: namespace[name] for name in ("data", "data_root", "seed")}

    def planned() -> tuple[dict[str, Need], list[Step]]:
        needs = needs_of(asked, namespace.budget, namespace.out, **options)
        return needs, steps_of(claims, needs)

    end = CLOCK() + 60 * namespace.minutes
    needs, steps = planned()

    def in_time() -> Iterator[str]:
        """Yield artefacts, without those that train nothing and take longer than there is time."""
        for name in (name for step in steps for name in step.artefacts):
            if CLOCK() < end and needs[name].seconds <= end - CLOCK():
                yield name

    with ReproductionProgress(len(needs)) as progress:
        results = _carried_out(in_time(), namespace, progress, lambda: end - CLOCK())
    left, done = planned()[1], {result.id for result in results}
    if namespace.weights is not None:
        # The plan is of the runs without them.
        left = [step for step in left if not done.issuperset(step.artefacts)]
    return results, left


def _list(entries: Sequence[Published], namespace: Namespace) -> int:
    """List artefacts with their verdict at each budget."""
    from normless_papers.budgets import BUDGETS
    from normless_papers.cli.text import listing
    from normless_papers.results.reproduction import load

    rows: list[tuple[Published, Mapping[str, str]]] = []
    for entry in entries:
        results = {budget: load(namespace.out, entry.id, budget) for budget in BUDGETS}
        rows.append((entry, {budget: own.verdict if own else "not run" for budget, own in results.items()}))
    listed = [{"id": own.id, "kind": own.kind, "title": own.title, "states": states} for own, states in rows]
    return answer(namespace, {"out": str(namespace.out), "artefacts": listed}, listing(rows))
