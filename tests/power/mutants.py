"""Mutants of Python files: small changes of one expression or statement each, drawn with a seed."""

from __future__ import annotations

import ast
import copy
import difflib
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

PACKAGES = ("normless", "normless_lab", "normless_papers")
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.MatMult: ast.Mult,
}  # fmt: skip
OPPOSITE_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """A replacement of the text between two places of a file, which are (line, column in bytes)."""

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    operator: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.start[0]}:{self.start[1]}:{self.operator}"

    def place(self, source: bytes) -> tuple[int, int]:
        """Return the offsets of the replaced text."""
        lengths = [0]
        for line in source.splitlines(keepends=True):
            lengths.append(lengths[-1] + len(line))
        return lengths[self.start[0] - 1] + self.start[1], lengths[self.end[0] - 1] + self.end[1]

    def of(self, source: bytes) -> bytes:
        """Return the mutated source."""
        start, end = self.place(source)
        return source[:start] + self.after.encode() + source[end:]

    def moved(self, old: bytes, new: bytes) -> Mutant | None:
        """Return the same mutant of a later version of the file, or None where its lines were changed."""
        before, after = old.splitlines(), new.splitlines()
        for block in difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
            if block.a < self.start[0] and self.end[0] <= block.a + block.size:
                lines = block.b - block.a
                start, end = (self.start[0] + lines, self.start[1]), (self.end[0] + lines, self.end[1])
                return replace(self, start=start, end=end)
        return None


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST | str]]:
    """Yield the operators that apply to a node, with what replaces it."""

    def changed(**fields: object) -> ast.AST:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            yield "comparison", changed(ops=[COMPARISONS[type(operator)]()])
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC:
            yield "arithmetic", changed(op=ARITHMETIC[type(operator)]())
        case ast.BoolOp(op=operator, values=[_, *others]):
            yield "and_or", changed(op=ast.Or() if isinstance(operator, ast.And) else ast.And())
            yield "first_operand_removed", others[0] if len(others) == 1 else changed(values=others)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "sign_removed", operand
        case ast.IfExp(body=body, orelse=other):
            yield "branches_swapped", changed(body=other, orelse=body)
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", ast.Constant(2 * value if value else 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in OPPOSITE_NAMES:
            yield "opposite_function", changed(func=ast.Name(OPPOSITE_NAMES[name]))
        case ast.Call():
            if node.keywords:
                yield "keyword_removed", changed(keywords=node.keywords[:-1])
            if len(node.args) >= 2 and not any(isinstance(argument, ast.Starred) for argument in node.args[:2]):
                yield "arguments_swapped", changed(args=[node.args[1], node.args[0], *node.args[2:]])
            if (
                len(node.args) == 1
                and not node.keywords
                and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp)
            ):
                yield "call_removed", node.args[0]
        case ast.comprehension(ifs=[condition, *_]):
            yield "condition_negated", condition  # replaced at the place of the condition
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield "returns_none", "return None"
        case (
            ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Expr(value=ast.Call() | ast.Await() | ast.YieldFrom())
        ):
            yield "statement_removed", "pass"
        case ast.Continue():
            yield "break", "break"
        case ast.Break():
            yield "continue", "continue"


class Visitor(ast.NodeVisitor):
    """Collects the mutants of a file, without annotations, docstrings, type checking and the texts of errors."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.mutants: list[Mutant] = []

    def add(self, node: ast.expr | ast.stmt, operator: str, after: ast.AST | str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        text = after if isinstance(after, str) else f"({ast.unparse(after)})"
        place = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        self.mutants.append(Mutant(self.file, *place, operator, text))

    def visit(self, node: ast.AST) -> None:
        for operator, after in changes(node):
            if isinstance(node, ast.comprehension):
                self.add(node.ifs[0], operator, ast.UnaryOp(ast.Not(), node.ifs[0]))
            elif isinstance(node, ast.expr | ast.stmt):
                self.add(node, operator, after)
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults, *node.decorator_list):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self.add(node.test, "condition_negated", ast.UnaryOp(ast.Not(), node.test))
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.add(node.test, "condition_negated", ast.UnaryOp(ast.Not(), node.test))
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave the text of an error as it is."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave texts; before Python 3.12 what is in them has no place."""


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """Return the mutants of a file; a few of them may equal it or not compile."""
    visitor = Visitor(file)
    visitor.visit(ast.parse(source))
    return visitor.mutants


def differs(mutant: Mutant, source: bytes) -> bool:
    """Whether the mutant is another program."""
    try:
        return ast.dump(ast.parse(mutant.of(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def draw(root: Path, count: int, seed: int) -> list[Mutant]:
    """Draw mutants of the packages: every line that has one is as likely, and files share them by their lines.

    The lines of all files, in the order of their paths, are divided into `count` intervals of equal length. In each,
    a line is drawn, and one of the line's mutants.
    """
    by_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            for mutant in mutants_of(file, path.read_bytes()):
                by_line[file, mutant.start[0]].append(mutant)
    lines = sorted(by_line)
    generator = random.Random(seed)
    drawn = []
    for interval in range(count):
        while True:
            line = lines[int((interval + generator.random()) * len(lines) / count)]
            mutant = generator.choice(by_line[line])
            if differs(mutant, (root / mutant.file).read_bytes()):
                drawn.append(mutant)
                break
    return drawn
