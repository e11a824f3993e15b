"""Which tests run given lines of a file, from what `coverage_of_tests` has noted."""

from __future__ import annotations

import ast
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOST_SECONDS = 1.0  # on a core, of a test on the average


@dataclass(frozen=True)
class Statement:
    """The lines of a statement without its body, and whether it runs in a function."""

    start: int
    end: int
    in_function: bool


def statements(node: ast.AST, in_function: bool = False) -> Iterator[Statement]:
    """Yield every statement below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            body = getattr(child, "body", None)
            end = body[0].lineno - 1 if body else child.end_lineno
            yield Statement(child.lineno, max(child.lineno, end or 0), in_function)
        yield from statements(child, in_function or isinstance(child, FUNCTIONS))


def is_run(numbits: bytes, lines: Iterable[int]) -> bool:
    """Whether one of the lines is in a set of lines as coverage stores it, a bit for each."""
    return any(line // 8 < len(numbits) and numbits[line // 8] & 1 << line % 8 for line in lines)


class Covering:
    """What a folder has on the tests: lines that they run, seconds, and failures without any change."""

    def __init__(self, folder: Path) -> None:
        self.databases = [sqlite3.connect(path) for path in sorted(folder.glob("coverage.*"))]
        failed = {row["test"] for path in folder.glob("failed.*.jsonl") for row in rows_of(path)}
        times = [row for path in folder.glob("tests.*.jsonl") for row in rows_of(path)]
        self.seconds: dict[str, float] = {row["test"]: row["seconds"] for row in times if row["test"] not in failed}

    def tests(self, file: str, source: bytes, lines: Iterable[int]) -> set[str]:
        """Return the tests that run one of the lines.

        Lines outside functions run when the module is imported. For them, the tests that run any function of the file
        count.
        """
        found = list(statements(ast.parse(source)))
        around = [max((s for s in found if s.start <= line <= s.end), default=None, key=start) for line in lines]
        chosen = [statement for statement in around if statement is not None and statement.in_function]
        if not chosen and any(around):
            chosen = [statement for statement in found if statement.in_function]
        wanted = {line for statement in chosen for line in range(statement.start, statement.end + 1)}
        query = (
            "select context, numbits from line_bits join context on context.id = context_id"
            " join file on file.id = file_id where path like ?"
        )
        rows = [row for database in self.databases for row in database.execute(query, (f"%/{file}",))]
        return {test for test, bits in rows if test in self.seconds and is_run(bits, wanted)}

    def fastest(self, tests: Iterable[str], count: int) -> list[str]:
        """Return up to `count` of the tests: the fastest case of each function, then its second one, and so on.

        They take `count` times `MOST_SECONDS` at most, unless the first one takes longer.
        """
        cases = Counter[str]()
        order = []
        for test in sorted(tests, key=self.seconds.__getitem__):
            function = test.partition("[")[0]
            order.append((cases[function], self.seconds[test], test))
            cases[function] += 1
        chosen: list[str] = []
        total = 0.0
        for _, seconds, test in sorted(order)[:count]:
            total += seconds
            if chosen and total > count * MOST_SECONDS:
                break
            chosen.append(test)
        return chosen


def start(statement: Statement) -> int:
    return statement.start


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file with a JSON object on each line."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
