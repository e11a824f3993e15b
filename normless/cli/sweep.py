"""``normless sweep run|status|export|retry|prune``: sweeps of YAML files."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli.laboratory import add_executor_arguments, add_state_arguments, laboratory_of
from normless.cli.parser import Implementation
from normless.output import add_json_flag, jsonable, print_json

if TYPE_CHECKING:
    from normless.sweeps import Laboratory, Sweep, SweepResult

OUT = Path("normless-sweeps")
# Between two looks at the status.
SECONDS = 2.0


def _add_common_arguments(parser: ArgumentParser) -> None:
    """Add the place of the runs, the metrics, and ``--json``."""
    add_state_arguments(parser, OUT)
    parser.add_argument(
        "--metrics",
        type=str,
        nargs="+",
        default=["test_accuracy"],
        help="columns of the table of runs; the rates are extended where the optimum of one lies at their end",
    )
    add_json_flag(parser)


def _add_sweep(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the sweep, as YAML")
    _add_common_arguments(parser)


def _sweep_of(path: Path, namespace: Namespace) -> Sweep:
    """The sweep of a file, with metrics that are columns of the table of runs."""
    from normless.sweeps import METRICS, Sweep

    unknown = [name for name in namespace.metrics if name not in METRICS]
    if unknown:
        raise ValueError(f"There is no metric {', '.join(unknown)}; there are {', '.join(METRICS)}.")
    return Sweep.from_yaml(path)


def _add_run_arguments(parser: ArgumentParser) -> None:
    _add_sweep(parser)
    add_executor_arguments(parser)


def _run(namespace: Namespace) -> int:
    """Carry out the sweep, with progress on standard error; 1 if a run failed."""
    return _carry_out(_sweep_of(namespace.file, namespace), namespace)


def _retry(namespace: Namespace) -> int:
    """Remove the failed runs and carry out the sweep; 1 if a run failed again."""
    sweep = _sweep_of(namespace.file, namespace)
    with laboratory_of(namespace) as lab:
        table = lab.read(sweep, metrics=namespace.metrics).runs
        failed = list(table.loc[table["outcome"] == "failed", "hash"])
        lab.state.remove(failed)
    sys.stderr.write(f"{sweep.name}: {len(failed)} failed runs are carried out again.\n")
    return _carry_out(sweep, namespace)


def _carry_out(sweep: Sweep, namespace: Namespace) -> int:
    from normless.cli.sweep_text import result_text
    from normless.sweeps import SweepProgress

    with SweepProgress(sweep.name) as progress, laboratory_of(namespace, progress) as lab:
        result = lab.run(sweep, metrics=namespace.metrics)
    facts = _facts(result, namespace)
    if namespace.json:
        print_json(jsonable(facts))
    else:
        sys.stdout.write(result_text(facts, list(sweep.axes), namespace.file))
    return 1 if facts["outcomes"]["failed"] else 0


def _facts(result: SweepResult, namespace: Namespace) -> dict[str, Any]:
    from normless.sweeps import OUTCOMES

    counts = result.runs["outcome"].value_counts()
    failed = result.runs[result.runs["outcome"] == "failed"]
    return {
        "name": result.sweep.name,
        "runs": len(result.runs),
        "missing": result.missing,
        "outcomes": {outcome: int(counts.get(outcome, 0)) for outcome in OUTCOMES},
        "errors": sorted(set(failed["error"])),
        "optima": [{**row} for metric in namespace.metrics for row in result.optima(metric).to_dict("records")],
        "out": str(namespace.out),
    }


def _add_status_arguments(parser: ArgumentParser) -> None:
    _add_sweep(parser)
    parser.add_argument("--once", action="store_true", help="look once, as is done where there is no terminal")


def _status(namespace: Namespace) -> int:
    """Show the status: on a terminal until every run is finished, elsewhere once."""
    from rich.console import Console

    from normless.cli.sweep_text import status_table
    from normless.sweeps import sweep_status

    sweep = _sweep_of(namespace.file, namespace)
    with laboratory_of(namespace) as lab:
        status = sweep_status(lab, sweep, namespace.metrics)
        if namespace.json:
            print_json(status.to_dict())
        elif namespace.once or not Console().is_terminal:
            Console().print(status_table(status))
        else:
            _watch(lab, sweep, namespace.metrics)
    return 0


def _watch(lab: Laboratory, sweep: Sweep, metrics: list[str]) -> None:
    """Show the status every few seconds."""
    from rich.live import Live

    from normless.cli.sweep_text import status_table
    from normless.sweeps import sweep_status

    status = sweep_status(lab, sweep, metrics)
    with Live(status_table(status), auto_refresh=False) as live:
        while status.finished < status.wanted:
            time.sleep(SECONDS)
            status = sweep_status(lab, sweep, metrics)
            live.update(status_table(status), refresh=True)


def _add_export_arguments(parser: ArgumentParser) -> None:
    _add_sweep(parser)
    parser.add_argument("to", type=Path, metavar="TO", help="file to write, of name .parquet or .csv")
    parser.add_argument("--epochs", action="store_true", help="a row per finished epoch instead of one per run")


def _export(namespace: Namespace) -> int:
    """Write the table of finished runs, or of their epochs, to a file."""
    to: Path = namespace.to
    if to.suffix not in (".parquet", ".csv"):
        raise ValueError(f"Expected a file of name .parquet or .csv to write to, got {to}.")
    sweep = _sweep_of(namespace.file, namespace)
    with laboratory_of(namespace) as lab:
        result = lab.read(sweep, metrics=namespace.metrics)
    table = result.epochs if namespace.epochs else result.runs
    to.parent.mkdir(parents=True, exist_ok=True)
    if to.suffix == ".csv":
        table.to_csv(to, index=False)
    else:
        table.to_parquet(to, index=False)
    if namespace.json:
        print_json({"name": sweep.name, "file": str(to), "rows": len(table), "missing": result.missing})
    else:
        missing = f"; {result.missing} runs of the sweep are missing" if result.missing else ""
        sys.stdout.write(f"wrote {to}: {len(table)} {'epochs' if namespace.epochs else 'runs'}{missing}\n")
    return 0


def _add_prune_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="the sweeps whose runs stay, as YAML")
    _add_common_arguments(parser)
    parser.add_argument("--yes", action="store_true", help="delete; else the runs are only counted")


def _prune(namespace: Namespace) -> int:
    """Delete the runs that none of the sweeps references, or count them."""
    from normless.sweeps import prunable, prune

    sweeps = [_sweep_of(path, namespace) for path in namespace.files]
    with laboratory_of(namespace) as lab:
        unreferenced = prunable(lab, sweeps, namespace.metrics)
        if namespace.yes:
            prune(lab, unreferenced)
    rows, folders = len(unreferenced.rows), [str(path) for path in unreferenced.folders]
    if namespace.json:
        print_json({"rows": rows, "folders": folders, "removed": namespace.yes})
        return 0
    done = "removed" if namespace.yes else "would be removed by --yes"
    sys.stdout.write(f"{rows} finished runs and {len(folders)} folders of unfinished ones or of weights {done}\n")
    return 0


RUN = Implementation(_add_run_arguments, _run)
RETRY = Implementation(_add_run_arguments, _retry)
STATUS = Implementation(_add_status_arguments, _status)
EXPORT = Implementation(_add_export_arguments, _export)
PRUNE = Implementation(_add_prune_arguments, _prune)
