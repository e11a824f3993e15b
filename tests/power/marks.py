"""Marks in sources, and which tests run them."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOST_SECONDS = 1.0  # on a core, of a test on the average


def places(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield every statement that a line can be put before, and whether it runs in a function."""
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.stmt):
                is_elif = isinstance(node, ast.If) and name == "orelse" and isinstance(child, ast.If)
                if not is_elif or child.col_offset > node.col_offset:
                    yield child, in_function
            if isinstance(child, ast.AST):
                yield from places(child, in_function or (isinstance(node, FUNCTIONS) and name == "body"))


def marked(source: bytes, lines: Mapping[int, Iterable[int]]) -> bytes:
    """Return the source with marks before statements: `lines` has the lines of each mark.

    Lines outside functions run when the module is imported. For them every function of the file is marked.
    """
    tree = ast.parse(source)
    text = source.splitlines(keepends=True)
    found = [place for place in places(tree) if starts_its_line(place[0], text)]
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    bodies = [statement for node in functions for statement in node.body[has_docstring(node) :][:1]]
    before: dict[int, set[int]] = defaultdict(set)
    for mark, numbers in lines.items():
        for line in numbers:
            around = [place for place in found if first(place[0]) <= line <= (place[0].end_lineno or 0)]
            statement, in_function = max(around, key=lambda place: first(place[0]), default=(None, False))
            for chosen in [statement] if statement is not None and in_function else bodies if around else []:
                if starts_its_line(chosen, text):
                    before[first(chosen)].add(mark)
    for line in sorted(before, reverse=True):
        indent = text[line - 1][: len(text[line - 1]) - len(text[line - 1].lstrip())]
        hits = "; ".join(f"__import__('power_hits').hit({mark})" for mark in sorted(before[line]))
        text.insert(line - 1, indent + hits.encode() + b"\n")
    return b"".join(text)


def first(statement: ast.stmt) -> int:
    """Return the first line of a statement, its decorators included."""
    return min([statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", []))])


def has_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.get_docstring(function) is not None


def starts_its_line(statement: ast.stmt, text: list[bytes]) -> bool:
    return not text[statement.lineno - 1][: statement.col_offset].strip()


class Hits:
    """What a run of the marked tests has noted: marks that each test runs, seconds, and failures."""

    def __init__(self, folder: Path, there: set[str]) -> None:
        failed = {test for _, test in rows_of(folder / "failed")}
        rows = rows_of(folder / "seconds")
        self.seconds = {test: float(time) for time, test in rows if test in there and test not in failed}
        self.tests: dict[int, set[str]] = defaultdict(set)
        for mark, test in rows_of(folder / "hits"):
            if test in self.seconds:
                self.tests[int(mark)].add(test)

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


def rows_of(path: Path) -> list[list[str]]:
    return [line.split("\t", 1) for line in path.read_text().splitlines()] if path.exists() else []
