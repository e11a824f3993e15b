"""What the tests notice: mutants of the packages and reverted fixes, and which tests kill them.

    make power                                                   # all of the below, for the last commit
    python tests/power/power.py record                           # once: which lines to change each test runs
    python tests/power/power.py run --minutes 30                 # mutants and reverts in random order; resumes
    python tests/power/power.py table                            # a summary, and tests/power/kills.csv
    python tests/power/power.py record --commit HEAD --drawn-at af1f8174    # the same mutants of another commit

`run --recorded-at COMMIT` uses the record of another commit, with those of its tests that are still there.

A mutant is written into a clone of the commit, and forty of the tests that run its line, the fastest case of each
function first, are run in a process that is forked from one which has torch and the other libraries loaded, but none
of the packages. Only tests count that pass in the same way without the change. The first failing test ends a mutant.
With `--all` every test is run, and `table --all` lists what one test alone kills. Data are in build/power/COMMIT.

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

from in_fork import failing, load_libraries
from marks import Hits, marked
from mutants import Mutant, draw
from tree import Revert, Tree

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MARKS = "not slow and not zoo and not gpu"
COLUMNS = ("id", "operator", "before", "after", "covering", "run", "outcome", "killed_by")
REVERTED = 3  # so many times the tests of a mutant are run on a reverted commit, which changes more
LONGEST = 80  # letters of a text in the table


def changes(tree: Tree, options: argparse.Namespace) -> dict[str, Mutant | Revert | None]:
    """Return the mutants and reverts by name, in random order, so that the first of them are a sample of all.

    Mutants that were drawn at another commit are None where their lines have changed since. Fresh ones, of another
    seed and of the commit where tests were recorded, come last.
    """
    reverts = [Revert(*line.split(maxsplit=1)) for line in (HERE / "reverts.txt").read_text().splitlines()]
    drawn_at = Tree(options.data / "tree-drawn", ROOT, options.drawn_at)

    def moved(mutant: Mutant, earlier: Tree) -> Mutant | None:
        new = tree.source(mutant.file) if (tree.folder / mutant.file).exists() else b""
        return mutant.moved(earlier.source(mutant.file), new)

    mutants: dict[str, Mutant | Revert | None] = {
        mutant.name: moved(mutant, drawn_at) for mutant in draw(drawn_at.folder, options.mutants, options.seed)
    }
    mutants |= {revert.name: revert for revert in reverts if options.reverts}
    names = list(mutants)
    random.Random(options.seed).shuffle(names)
    recorded = Tree(options.data / "tree-recorded", ROOT, options.recorded_at)
    fresh: dict[str, Mutant | Revert | None] = {
        f"fresh:{mutant.name}": moved(mutant, recorded)
        for mutant in draw(recorded.folder, options.fresh, options.seed + 1)
    }
    return {name: mutants[name] for name in names} | fresh


def record(options: argparse.Namespace) -> None:
    """Mark the lines that will change, run the tests once, and note which marks each one runs."""
    tree = Tree(options.data / "tree-marked", ROOT, options.commit)
    lines: dict[str, dict[int, list[int]]] = defaultdict(dict)
    for mark, change in enumerate(changes(tree, options).values()):
        if change is not None:
            for file, numbers in tree.apply(change).items():
                lines[file][mark] = list(numbers)
            tree.restore()
    for file, marks in lines.items():
        (tree.folder / file).write_bytes(marked(tree.source(file), marks))
    path = os.pathsep.join(map(str, (tree.folder, HERE)))
    environment = {**os.environ, "POWER_HITS": str(options.data), "PYTHONPATH": path}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "power_hits", "-m", MARKS]
    command += ["-n", str(options.workers), "--dist", "worksteal", *options.tests_of]
    for name in ("hits", "seconds", "failed"):
        (options.data / name).unlink(missing_ok=True)
    subprocess.run(command, cwd=tree.folder, env=environment, check=False)  # failed tests do not count


class Worker:
    """Works on its share of the changes in a tree of its own."""

    def __init__(self, number: int, options: argparse.Namespace) -> None:
        self.options = options
        self.tree = Tree(options.data / f"tree-{number}", ROOT, options.commit)
        self.hits = Hits(options.hits, options.tests_there)
        self.verified = options.data / "verified.jsonl"

    def fails_anyway(self, tests: list[str], chosen: list[str]) -> set[str]:
        """Return those of the tests that fail in the unchanged tree too; each is run once.

        What is not a test, such as a file that cannot be imported, is tried by all tests that were chosen.
        """
        if not all(test in self.hits.seconds for test in tests):
            failed = failing(self.tree.folder, chosen, every=False, seconds=self.limit(chosen))
            return {*tests, *chosen} if failed else set()
        known = {row["test"]: row["passes"] for row in json_rows(self.verified)}
        if unknown := [test for test in tests if test not in known]:
            failed = failing(self.tree.folder, unknown, every=True, seconds=self.limit(unknown))
            passes = {test: test not in failed and set(failed) <= {*unknown} for test in unknown}
            with self.verified.open("a") as lines:
                lines.writelines(json.dumps({"test": test, "passes": passes[test]}) + "\n" for test in unknown)
            known |= passes
        return {test for test in tests if not known.get(test, True)}

    def limit(self, tests: list[str]) -> float:
        """Return the seconds on a core after which tests are taken to run for ever."""
        return 90 + 4 * sum(self.hits.seconds[test] for test in tests)

    def outcome(self, name: str, change: Mutant | Revert | None, mark: int) -> dict[str, Any]:
        """Return the row of a change."""
        row: dict[str, Any] = {"id": name, "operator": getattr(change, "operator", "revert")}
        row |= {"before": getattr(change, "title", ""), "after": getattr(change, "after", "")}
        lines = self.tree.apply(change) if change is not None else {}
        if not lines:
            return row | {"covering": 0, "run": 0, "outcome": "has changed", "killed_by": []}
        row["file"] = next(iter(lines))
        if isinstance(change, Mutant):
            source = self.tree.original(change.file)
            start, end = change.place(source)
            row["before"] = source[start:end].decode()
        tests = set(self.hits.tests[mark])
        count = self.options.tests * (1 if isinstance(change, Mutant) else REVERTED)
        chosen: list[str] = []
        killed: list[str] = []
        while tests and not killed:
            chosen = self.hits.fastest(tests, count)
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
        outcome = "uncovered" if not tests else "killed" if killed else "survived"
        return row | {"covering": len(tests), "run": len(chosen), "outcome": outcome, "killed_by": killed}


def tests_of(tree: Tree) -> set[str]:
    """Return the tests of a tree, which may have fewer than where they were recorded."""
    environment = {**os.environ, "PYTHONPATH": str(tree.folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "-m", MARKS, "tests"]
    lines = subprocess.run(command, cwd=tree.folder, env=environment, check=True, capture_output=True, text=True)
    return {line for line in lines.stdout.splitlines() if "::" in line}


def results_file(options: argparse.Namespace) -> Path:
    data: Path = options.data
    return data / f"results.{options.seed}.{'all' if options.all else 'first'}.jsonl"


def run(options: argparse.Namespace) -> None:
    """Run the tests on every change that has no row yet, until the time is over."""
    deadline = time.monotonic() + 60 * options.minutes
    results = results_file(options)
    options.tests_there = tests_of(Tree(options.data / "tree-0", ROOT, options.commit))
    load_libraries()
    every = changes(Tree(options.data / "tree-0", ROOT, options.commit), options)
    done = {row["id"] for row in json_rows(results)}
    left = [(name, change, mark) for mark, (name, change) in enumerate(every.items()) if name not in done]
    left.sort(key=lambda change: not change[0].startswith("fresh:") and options.fresh_first)
    children = []
    for number in range(options.workers):
        if (child := os.fork()) == 0:
            worker = Worker(number, options)
            for change in left[number :: options.workers]:
                if time.monotonic() > deadline:
                    break
                start = time.monotonic()
                row = worker.outcome(*change)
                with results.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
                say(row["id"], row["outcome"], *row["killed_by"][:3], f"{time.monotonic() - start:.1f} s")
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def table(options: argparse.Namespace) -> None:
    """Write the table of kills, and print the counts of each package and what survived."""
    rows = sorted(json_rows(results_file(options)), key=lambda row: str(row["id"]))
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    with options.table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            is_fresh = str(row["id"]).startswith("fresh:")
            kind = "reverts" if row["operator"] == "revert" else "fresh" if is_fresh else "mutants"
            counts[str(row.get("file", "")).partition("/")[0], kind][row["outcome"]] += 1
            texts = [" ".join(str(row[column]).split())[:LONGEST] for column in COLUMNS[:-1]]
            writer.writerow([*texts, " ".join(row["killed_by"][:3])])
    for (package, kind), outcomes in sorted(counts.items()):
        say(f"{package:16} {kind} {sum(outcomes.values()):4}", dict(outcomes))
    for row in rows:
        if row["outcome"] in ("survived", "uncovered"):
            numbers = f"({row['run']} of {row['covering']} tests)"
            say(row["outcome"], row["id"], row["before"], "->", row["after"], numbers)
    alone = defaultdict(list)
    for row in rows if options.all else []:
        if len(row["killed_by"]) == 1:
            alone[row["killed_by"][0]].append(row["id"])
    for test, names in sorted(alone.items()):
        say("alone", test, *names)


def json_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file with a JSON object on each line."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "run", "table"))
    parser.add_argument("tests_of", nargs="*", default=["tests"], help="files whose tests are recorded")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "power")
    parser.add_argument("--commit", default="HEAD", help="whose tests are run")
    parser.add_argument("--drawn-at", default=None, help="commit whose lines are drawn; --commit itself by default")
    parser.add_argument("--recorded-at", default=None, help="commit whose record is used; --commit by default")
    parser.add_argument("--table", type=Path, default=HERE / "kills.csv", help="where the table is written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=240)
    parser.add_argument("--fresh", type=int, default=60, help="mutants of the commit itself, of another seed")
    parser.add_argument("--fresh-first", action="store_true", help="run the fresh mutants before the others")
    parser.add_argument("--reverts", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--tests", type=int, default=40, help="tests of a mutant")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no change after them")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="run every test of a mutant, also after one has failed")
    options = parser.parse_intermixed_args()
    revision = ["git", "rev-parse", "--short=8"]
    options.commit, options.drawn_at, options.recorded_at = (
        subprocess.run([*revision, commit], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
        for commit in (options.commit, options.drawn_at or options.commit, options.recorded_at or options.commit)
    )
    options.hits = options.data.resolve() / options.recorded_at
    options.data = options.data.resolve() / options.commit
    options.data.mkdir(parents=True, exist_ok=True)
    {"record": record, "run": run, "table": table}[options.command](options)


if __name__ == "__main__":
    main()
