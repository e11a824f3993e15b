"""Train small transformers under every scheme of docs/results/recent_methods.md at equal budget, and print the table.

Run it from anywhere: `python benchmarks/recent_methods.py [--out FOLDER] [--seeds 3]`. It takes half an hour of one
core, and goes on where it was interrupted.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from small_transformers import SmallTransformerResult, task_of

from normless_lab.sweeps import Laboratory, RunRow, Sweep

SWEEP = Path(__file__).with_suffix(".yaml")
METRIC = "validation_loss"


def measure(sweep: Sweep, lab: Laboratory, seeds: int) -> dict[tuple[str, str], list[RunRow]]:
    """The runs of each combination at its best rate, one for each seed."""
    best = lab.run(sweep, metrics=(METRIC,)).optima(METRIC)
    more = replace(sweep, replicates=seeds, best=seeds)
    rows = {}
    for task, method, chosen in best[["task", "method", "rate"]].itertuples(index=False, name=None):
        configs = [point.config for point in more.points_at((task, method), [chosen])]
        rows[task, method] = lab.carry_out(configs)
    return rows


def table(rows: dict[tuple[str, str], list[RunRow]]) -> str:
    """The table in Markdown: a row per method, with the rate and the test metrics on each task."""
    lines = [
        "| method | parameters | digits: rate | accuracy, % | loss | text: rate | loss | accuracy, % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for method in dict.fromkeys(method for _, method in rows):
        digits, text = rows["digits", method], rows["text", method]
        name = f"`{method}`" if " " not in method else method
        cells = (
            *(name, f"{reports(text)[0].parameters:,}"),
            *(rate(digits), spread(digits, "test_accuracy", 100, 1), spread(digits, "test_loss", 1, 3)),
            *(rate(text), spread(text, "test_loss", 1, 3), spread(text, "test_accuracy", 100, 1)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def reports(rows: Sequence[RunRow]) -> list[SmallTransformerResult]:
    """The results of runs; one that failed is a RuntimeError."""
    failed = [row.error for row in rows if row.error]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(rows)} runs failed: {failed[0]}")
    return [SmallTransformerResult.from_dict(row.result or {}) for row in rows]


def rate(rows: Sequence[RunRow]) -> str:
    """The learning rate of runs at one rate."""
    return f"{rows[0].config['rate']:.2g}"


def spread(rows: Sequence[RunRow], metric: str, factor: float, digits: int) -> str:
    """Mean ± standard deviation of a metric, times a factor."""
    values = [factor * getattr(report, metric) for report in reports(rows)]
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}" if len(values) > 1 else f"{values[0]:.{digits}f}"


def main() -> None:
    """Run what is missing and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("normless-sweeps"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    sweep = Sweep.from_yaml(SWEEP)
    with Laboratory(arguments.out, workers=1) as lab:
        rows = measure(sweep, lab, arguments.seeds)
        runs = list(lab.state.read(lab.asked).values())
    for name in sweep.axes["task"]:
        task = task_of(name)
        sizes = " / ".join(str(len(part.inputs)) for part in (task.train, task.validation, task.test))
        sys.stdout.write(f"{name}: {sizes} training / validation / test examples, {task.classes} classes\n")
    seconds = sum(row.seconds for row in runs)
    sys.stdout.write(f"{len(runs)} runs, {seconds / 60:.0f} minutes, {runs[0].machine}, {runs[0].versions}\n\n")
    sys.stdout.write(f"{table(rows)}\n")


if __name__ == "__main__":
    main()
