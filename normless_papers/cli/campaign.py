"""What the papers' verdicts still lack, run beside other work: ``python -m normless_papers.cli.campaign``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli import add_json_flag, answer

if TYPE_CHECKING:
    from normless_papers.planning.campaign import EntryStatus

OUT = Path("normless-campaign")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the time, the folder, the file of runs to begin with, and the data."""
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        help="the time for runs; unfinished runs are saved, and the same command goes on",
    )
    parser.add_argument("--status", action="store_true", help="show what is done; run nothing")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for results and training runs")
    parser.add_argument(
        "--runs",
        type=Path | None,
        default=None,
        metavar="FILE",
        help="a file of normless report --runs, whose rows are not carried out again",
    )
    parser.add_argument("--data-root", type=str, default=None, help="folder of the data sets")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each, of the lowest priority")
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Carry out what is missing in the time there is, and print the status; 1 if a measurement ended in an error."""
    from normless_lab.sweeps import SweepProgress
    from normless_papers.planning.campaign import Campaign

    campaign = Campaign(namespace.out, namespace.data_root)
    with redirect_stdout(sys.stderr):
        if namespace.runs is not None:
            campaign.take_over(namespace.runs)
        if not namespace.status:
            with SweepProgress("campaign") as progress:
                campaign.carry_out(namespace.minutes, workers=namespace.workers, listener=progress)
        found = campaign.status()
    return answer(namespace, {"out": str(namespace.out), "entries": list(map(_facts, found))}, _text(found))


def _facts(status: EntryStatus) -> dict[str, Any]:
    verdict = status.result.verdict if status.result else None
    numbers = {"finished": status.finished, "wanted": status.wanted}
    running = {name: list(epochs) for name, epochs in status.running.items()}
    return {**vars(status.entry), "verdict": verdict, **numbers, "running": running}


def _text(found: Sequence[EntryStatus]) -> str:
    """Return a line for each entry, and one for each run that has begun."""
    lines = []
    for status in found:
        runs = f"{status.finished} of {status.wanted} runs" if status.wanted else "not measured"
        state = status.result.verdict if status.result else runs
        lines.append(f"{status.entry.artefact:52} {status.entry.budget:6} {state}")
        lines += [f"    {name}: epoch {done} of {epochs}" for name, (done, epochs) in status.running.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    from normless_lab.train import StoppedError

    parser = ArgumentParser(prog="python -m normless_papers.cli.campaign", description=__doc__)
    add_arguments(parser)
    try:
        sys.exit(run(parser.parse_args()))
    except StoppedError as stopped:
        sys.stderr.write(f"{stopped}\n")
        sys.exit(stopped.exit_code)
