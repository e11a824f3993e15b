"""What the tests notice: mutants of the packages and reverted fixes, and which tests kill them.

    make power                                      # all of the below; resumes where it ended
    python tests/power/power.py record              # once: which lines each test runs, by the package coverage
    python tests/power/power.py run --minutes 30    # mutants and reverts in random order
    python tests/power/power.py table               # tests/power/kills.csv and a summary

A mutant is written into a clone of the commit, and forty of the tests that run its line, the fastest case of each
function first, are run in a process that is forked from one which has torch and the other libraries loaded, but none
of the packages. Only tests count that pass in the same way without the change. The first failing test ends a mutant.
With `--all` every test is run, and `table --all` lists what one test alone kills. Lines that tests run in other
processes only are `uncovered`. Data are in build/power or `--data`; remove results.*.jsonl there to start anew, and
the rest too after the packages have changed.

mutmut calls every function through another one that chooses the mutant, which `torch.export` and signatures see, and
cosmic-ray starts a process for each mutant; hence this program.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from covering import Covering, rows_of
from in_fork import failing, load_libraries
from mutants import Mutant, draw
from tree import Revert, Tree

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MARKS = "not slow and not zoo and not gpu"
COLUMNS = ("id", "operator", "before", "after", "covering", "run", "outcome", "killers", "killed_by")
REVERTED = 3  # so many times the tests of a mutant are run on a reverted commit, which changes more
LONGEST = 80  # letters of a text in the table


def record(options: argparse.Namespace) -> None:
    """Run the tests once, and note which lines each one runs."""
    folder = options.data / "coverage"
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, (str(ROOT), str(HERE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "POWER_DATA": str(folder), "PYTHONPATH": path}
    workers = ["-n", str(options.workers), "--dist", "worksteal"]
    # Tests may fail; those do not count.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "coverage_of_tests", "-m", MARKS]
    subprocess.run([*command, *workers, *options.tests_of], cwd=ROOT, env=environment, check=False)


def changes(root: Path, options: argparse.Namespace) -> list[Mutant | Revert]:
    """Return the mutants and reverts in random order, so that the first of them are a sample of all."""
    reverts = [Revert(*line.split(maxsplit=1)) for line in (HERE / "reverts.txt").read_text().splitlines()]
    found: list[Mutant | Revert] = [*draw(root, options.mutants, options.seed), *reverts]
    random.Random(options.seed).shuffle(found)
    return found


class Worker:
    """Works on its share of the changes in a tree of its own."""

    def __init__(self, number: int, options: argparse.Namespace) -> None:
        self.options = options
        self.tree = Tree(options.data / f"tree-{number}", ROOT)
        self.covering = Covering(options.data / "coverage")
        self.verified = options.data / "verified.jsonl"

    def fails_anyway(self, tests: list[str], chosen: list[str]) -> set[str]:
        """Return those of the tests that fail in the unchanged tree too; each is run once.

        What is not a test, such as a file that cannot be imported, is tried by all tests that were chosen.
        """
        if not all(test in self.covering.seconds for test in tests):
            failed = failing(self.tree.folder, chosen, every=False, seconds=self.limit(chosen))
            return {*tests, *chosen} if failed else set()
        known = {row["test"]: row["passes"] for row in rows_of(self.verified)}
        if unknown := [test for test in tests if test in self.covering.seconds and test not in known]:
            failed = failing(self.tree.folder, unknown, every=True, seconds=self.limit(unknown))
            passes = {test: test not in failed and set(failed) <= {*unknown} for test in unknown}
            with self.verified.open("a") as lines:
                lines.writelines(json.dumps({"test": test, "passes": passes[test]}) + "\n" for test in unknown)
            known |= passes
        return {test for test in tests if not known.get(test, True)}

    def limit(self, tests: list[str]) -> float:
        """Return the seconds on a core after which tests are taken to run for ever."""
        return 90 + 4 * sum(self.covering.seconds[test] for test in tests)

    def outcome(self, change: Mutant | Revert) -> dict[str, Any]:
        """Return the row of a change."""
        start = time.monotonic()
        lines = self.tree.apply(change)
        originals = {file: self.tree.original(file) for file in lines}
        covering = [self.covering.tests(file, originals[file], lines[file]) for file in lines]
        tests = set[str]().union(*covering)
        count = self.options.tests * (1 if isinstance(change, Mutant) else REVERTED)
        chosen: list[str] = []
        killed: list[str] = []
        while tests and not killed:
            chosen = self.covering.fastest(tests, count)
            killed = failing(self.tree.folder, chosen, every=self.options.all, seconds=self.limit(chosen))
            if not killed:
                break
            self.tree.restore()
            if anyway := self.fails_anyway(killed, chosen):
                killed = [test for test in killed if test not in anyway]
                tests -= anyway
                if not killed:
                    self.tree.apply(change)
        self.tree.restore()
        outcome = "does not revert" if not lines else "uncovered" if not tests else "killed" if killed else "survived"
        row: dict[str, Any] = {"id": change.name, "file": next(iter(lines), ""), "operator": "revert"}
        row |= {"before": getattr(change, "title", ""), "after": ""}
        if isinstance(change, Mutant):
            first, last = change.place(originals[change.file])
            before = originals[change.file][first:last].decode()
            row |= {"operator": change.operator, "before": before, "after": change.after}
        row |= {"covering": len(tests), "run": len(chosen), "outcome": outcome}
        row |= {"killers": len(killed), "killed_by": killed, "seconds": round(time.monotonic() - start, 1)}
        return row | {"commit": self.tree.git("rev-parse", "HEAD").strip()}


def results_file(options: argparse.Namespace) -> Path:
    data: Path = options.data
    return data / f"results.{options.seed}.{'all' if options.all else 'first'}.jsonl"


def run(options: argparse.Namespace) -> None:
    """Run the tests on every change that has no row yet, until the time is over."""
    deadline = time.monotonic() + 60 * options.minutes
    results = results_file(options)
    load_libraries()
    Tree(options.data / "tree-0", ROOT)
    every = changes(options.data / "tree-0", options)[: options.first]
    done = {row["id"] for row in rows_of(results)}
    left = [change for change in every if change.name not in done]
    children = []
    for number in range(options.workers):
        if (child := os.fork()) == 0:
            worker = Worker(number, options)
            for change in left[number :: options.workers]:
                if time.monotonic() > deadline:
                    break
                row = worker.outcome(change)
                with results.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
                say(row["id"], row["outcome"], *row["killed_by"][:3], f"{row['seconds']} s")
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def table(options: argparse.Namespace) -> None:
    """Write the table of kills, and print the counts of each package and what survived."""
    rows = sorted(rows_of(results_file(options)), key=lambda row: row["id"])
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    with options.table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            kind = "reverts" if row["operator"] == "revert" else "mutants"
            counts[str(row["file"]).partition("/")[0], kind][row["outcome"]] += 1
            row["killed_by"] = " ".join(row["killed_by"][:3])
            writer.writerow(
                [
                    " ".join(str(row[column]).split())[: None if column == "killed_by" else LONGEST]
                    for column in COLUMNS
                ]
            )
    for (package, kind), outcomes in sorted(counts.items()):
        say(f"{package:16} {kind} {sum(outcomes.values()):4}", dict(outcomes))
    for row in rows:
        if row["outcome"] == "survived":
            say(
                "survived", row["id"], row["before"], "->", row["after"], f"({row['run']} of {row['covering']} tests)"
            )
    if options.all:
        alone = defaultdict(list)
        for row in rows_of(results_file(options)):
            if row["killers"] == 1:
                alone[row["killed_by"][0]].append(row["id"])
        for test, names in sorted(alone.items()):
            say("alone", test, *names)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "run", "table"))
    parser.add_argument("tests_of", nargs="*", default=["tests"], help="files whose tests are recorded")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "power")
    parser.add_argument("--table", type=Path, default=HERE / "kills.csv", help="where the table is written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=240)
    parser.add_argument("--tests", type=int, default=40, help="tests of a mutant")
    parser.add_argument("--first", type=int, default=None, help="only the first changes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no change after them")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="run every test of a mutant, also after one has failed")
    options = parser.parse_intermixed_args()
    options.data = options.data.resolve()
    {"record": record, "run": run, "table": table}[options.command](options)


if __name__ == "__main__":
    main()
