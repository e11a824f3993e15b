"""``normless sweep run FILE``: carry out what a sweep has no row of yet, and print its optima."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli.laboratory import add_executor_arguments, laboratory_of
from normless.cli.sweep.arguments import add_sweep_arguments, sweep_of
from normless.output import jsonable, print_json

if TYPE_CHECKING:
    from normless.sweeps import Laboratory, Sweep, SweepResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add the sweep, where its runs are, and what executes them."""
    add_sweep_arguments(parser)
    add_executor_arguments(parser)


def run(namespace: Namespace) -> int:
    """Carry out the sweep; 1 if a run failed, which the others do not mind."""
    return carry_out(sweep_of(namespace.file, namespace), namespace)


def carry_out(sweep: Sweep, namespace: Namespace) -> int:
    """Carry out a sweep, show where it stands on standard error, and print what it gave.

    Args:
        sweep: to carry out.
        namespace: of a command with the arguments of this one.
    """
    from normless.sweeps import SweepProgress

    with SweepProgress(sweep.name) as progress, laboratory_of(namespace, progress) as lab:
        result = lab.run(sweep, metrics=namespace.metrics)
    facts = _facts(result, lab, namespace.metrics)
    if namespace.json:
        print_json(jsonable(facts))
    else:
        _print(sweep, facts, namespace)
    return 1 if facts["outcomes"]["failed"] else 0


def _facts(result: SweepResult, lab: Laboratory, metrics: list[str]) -> dict[str, Any]:
    """What is printed."""
    from normless.sweeps import OUTCOMES

    counts = result.runs["outcome"].value_counts()
    failed = result.runs[result.runs["outcome"] == "failed"]
    optima = [{**row} for metric in metrics for row in result.optima(metric).to_dict("records")]
    return {
        "name": result.sweep.name,
        "runs": len(result.runs),
        "missing": result.missing,
        "outcomes": {outcome: int(counts.get(outcome, 0)) for outcome in OUTCOMES},
        "errors": sorted(set(failed["error"])),
        "optima": optima,
        "out": str(lab.folder),
    }


def _print(sweep: Sweep, facts: dict[str, Any], namespace: Namespace) -> None:
    from normless.cli.network import as_text, table, terminal_width

    axes = list(sweep.axes)
    names = [*axes, "metric", "mean", "deviation", "n", "rate", "rate range", "at an end"]
    rows = [
        (
            *(str(row[axis]) for axis in axes),
            row["metric"],
            *(_number(row[name]) for name in ("mean", "deviation")),
            str(row["n"]),
            _number(row["rate"]),
            _range(row["rate_low"], row["rate_high"]),
            row["edge"] or "–",
        )
        for row in facts["optima"]
    ]
    numeric = range(len(axes) + 1, len(axes) + 5)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in facts["outcomes"].items() if count)
    lines = [f"{facts['name']}: {facts['runs']} runs: {counts or 'none is finished'}"]
    lines += ["", as_text(table(names, rows, right=tuple(numeric)), terminal_width())] if rows else []
    lines += [f"failed with {error}" for error in facts["errors"]]
    if facts["errors"]:
        lines.append(f"to carry these out again: normless sweep retry {namespace.file}")
    if facts["missing"]:
        lines.append(f"{facts['missing']} runs are missing, of other shards; start those, and this one again.")
    sys.stdout.write("\n".join(lines) + "\n")


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.4g}"


def _range(low: float, high: float) -> str:
    return _number(low) if low != low or low == high else f"{_number(low)} … {_number(high)}"
