"""``normless sweep run|status|export|retry|prune``: sweeps of YAML files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jsonargparse import ArgumentParser, Namespace

from normless.cli import add_json_flag, answer, check_names, print_json
from normless.saving import replaced, write_csv
from normless.spec import jsonable
from normless_lab.cli._laboratory import add_executor_arguments, add_state_arguments, laboratory_of
from normless_lab.process import read_yaml

if TYPE_CHECKING:
    from normless_lab.sweeps import Laboratory, Sweep
    from normless_lab.sweeps._page import SweepFigure

OUT = Path("normless-sweeps")
# Between two looks at the status.
SECONDS = 2.0


class SweepCommand(NamedTuple):
    """A command of this module about one or several sweeps, with the function that adds its specific arguments."""

    run: Callable[[Namespace], int]
    add_own: Callable[[ArgumentParser], object]
    several: bool = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the file, the place of the runs, the metrics, ``--json`` and the arguments of its own."""
        path: dict[str, Any] = {"type": Path, "metavar": "FILE"}
        if self.several:
            parser.add_argument("files", nargs="+", help="the sweeps whose runs stay, as YAML", **path)
        else:
            parser.add_argument("file", help="the sweep, as YAML", **path)
        add_state_arguments(parser, OUT)
        parser.add_argument(
            "--metrics",
            type=str,
            nargs="+",
            default=["test_accuracy"],
            help="columns of the table of runs; the rates are extended where the optimum of one lies at their end",
        )
        add_json_flag(parser)
        self.add_own(parser)


def sweep_of(path: Path, namespace: Namespace) -> Sweep:
    """Return the sweep of a file after checking that the metrics are columns of the table of runs."""
    from normless_lab.sweeps import Sweep
    from normless_lab.sweeps._runs import KINDS

    # Before torch is imported; `Sweep` reports other errors of the file.
    with suppress(OSError, AttributeError, TypeError):
        stated = read_yaml(path)
        # Other runs may have settings of these names that mean something else.
        if stated.get("run", "train") in KINDS:
            check_names(stated.get("base") or {})
            check_names(stated.get("axes") or {})
    sweep = Sweep.from_yaml(path)
    check_metrics(namespace, sweep.metrics)
    return sweep


def check_metrics(namespace: Namespace, metrics: Sequence[str]) -> None:
    """Raise a ValueError for a metric that is not among the columns of the table of runs."""
    unknown = [name for name in namespace.metrics if name not in metrics]
    if unknown:
        raise ValueError(f"There is no metric {', '.join(unknown)}; there are {', '.join(metrics)}.")


def _add_run(parser: ArgumentParser) -> None:
    add_executor_arguments(parser)
    parser.add_argument("--page", action="store_true", help="write figures and the page index.html into the folder")


def _run(namespace: Namespace) -> int:
    """Execute the sweep of the file; return 1 if a run failed."""
    sweep = sweep_of(namespace.file, namespace)
    failed = run_sweep(sweep, namespace)
    # By which `normless report` finds the sweep of the runs. Its name need not be that of a file.
    copy, text = namespace.out / f"{namespace.file.stem}.yaml", namespace.file.read_bytes()
    if namespace.out.is_dir() and not (copy.is_file() and copy.read_bytes() == text):
        with replaced(copy, str(os.getpid())) as part:
            part.write_bytes(text)
    return failed


def run_sweep(
    sweep: Sweep, namespace: Namespace, figure: Callable[[Laboratory, Sweep], SweepFigure] | None = None
) -> int:
    """Execute a sweep, with progress on standard error; return 1 if a run failed.

    With the argument `page`, its page is written, with a further figure if there is a function for it.
    """
    from normless_lab.cli._sweep_text import result_text
    from normless_lab.sweeps import OUTCOMES, SweepProgress
    from normless_lab.sweeps._page import write_sweep_page

    files: tuple[Path, ...] = ()
    with SweepProgress(sweep.name) as progress, laboratory_of(namespace, progress) as lab:
        result = lab.run(sweep, metrics=namespace.metrics)
        if namespace.page and len(result.runs):
            further = [] if figure is None else [figure(lab, sweep)]
            files = write_sweep_page(result, namespace.out, metric=namespace.metrics[0], further=further)
    counts = result.runs["outcome"].value_counts()
    failed = result.runs[result.runs["outcome"] == "failed"]
    facts = {
        "name": sweep.name,
        "runs": len(result.runs),
        "missing": result.missing,
        "outcomes": {outcome: int(counts.get(outcome, 0)) for outcome in OUTCOMES},
        "errors": sorted(set(failed["error"])),
        "optima": [row for metric in namespace.metrics for row in result.optima(metric).to_dict("records")],
        "out": str(namespace.out),
        "files": list(map(str, files)),
    }
    answer(namespace, jsonable(facts), result_text(facts, list(sweep.axes), namespace.file))
    return int(len(failed) > 0)


def _retry(namespace: Namespace) -> int:
    """Remove the failed runs and execute the sweep; return 1 if a run failed again."""
    sweep = sweep_of(namespace.file, namespace)
    with laboratory_of(namespace) as lab:
        table = lab.read(sweep, metrics=namespace.metrics).runs
        failed = list(table.loc[table["outcome"] == "failed", "hash"])
        lab.state.remove(failed)
    sys.stderr.write(f"{sweep.name}: {len(failed)} failed runs start again.\n")
    return _run(namespace)


def _status(namespace: Namespace) -> int:
    """Show the status: on a terminal until every run is finished, elsewhere once."""
    from rich.console import Console
    from rich.live import Live

    from normless_lab.cli._sweep_text import status_table
    from normless_lab.sweeps._status import sweep_status

    sweep = sweep_of(namespace.file, namespace)
    with laboratory_of(namespace) as lab:
        look = partial(sweep_status, lab, sweep, namespace.metrics)
        status = look()
        if namespace.json:
            print_json(status.to_dict())
        elif namespace.once or not Console().is_terminal:
            Console().print(status_table(status))
        else:
            with Live(status_table(status), auto_refresh=False) as live:
                while status.finished < status.wanted:
                    time.sleep(SECONDS)
                    status = look()
                    live.update(status_table(status), refresh=True)
    return 0


def _add_export(parser: ArgumentParser) -> None:
    parser.add_argument("to", type=Path, metavar="TO", help="file to write, of name .parquet or .csv")
    parser.add_argument("--epochs", action="store_true", help="a row per finished epoch instead of one per run")


def _export(namespace: Namespace) -> int:
    """Write the table of finished runs, or of their epochs, to a file."""
    to: Path = namespace.to
    if to.suffix not in (".parquet", ".csv"):
        raise ValueError(f"Expected a file of name .parquet or .csv to write to, got {to}.")
    sweep = sweep_of(namespace.file, namespace)
    with laboratory_of(namespace) as lab:
        result = lab.read(sweep, metrics=namespace.metrics)
    table = result.epochs if namespace.epochs else result.runs
    to.parent.mkdir(parents=True, exist_ok=True)
    if to.suffix == ".csv":
        write_csv(table, to)
    else:
        table.to_parquet(to, index=False)
    missing = f"; {result.missing} runs of the sweep are missing" if result.missing else ""
    facts = {"name": sweep.name, "file": str(to), "rows": len(table), "missing": result.missing}
    return answer(namespace, facts, f"wrote {to}: {len(table)} {'epochs' if namespace.epochs else 'runs'}{missing}")


def _prune(namespace: Namespace) -> int:
    """Delete the runs that none of the sweeps references, or count them."""
    from normless_lab.sweeps._status import prunable, prune

    sweeps = [sweep_of(path, namespace) for path in namespace.files]
    with laboratory_of(namespace) as lab:
        unreferenced = prunable(lab, sweeps, namespace.metrics)
        if namespace.yes:
            prune(lab, unreferenced)
    rows, folders = len(unreferenced.rows), [str(path) for path in unreferenced.folders]
    done = "removed" if namespace.yes else "would be removed by --yes"
    text = f"{rows} finished runs and {len(folders)} folders of unfinished ones or of weights {done}"
    return answer(namespace, {"rows": rows, "folders": folders, "removed": namespace.yes}, text)


RUN = SweepCommand(_run, _add_run)
RETRY = SweepCommand(_retry, _add_run)
STATUS = SweepCommand(
    _status,
    lambda parser: parser.add_argument(
        "--once", action="store_true", help="look once, as is done where there is no terminal"
    ),
)
EXPORT = SweepCommand(_export, _add_export)
PRUNE = SweepCommand(
    _prune,
    lambda parser: parser.add_argument("--yes", action="store_true", help="delete; else the runs are only counted"),
    several=True,
)
