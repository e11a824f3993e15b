"""Children of a module that replace one expression in turns, since the expression runs several times."""

from __future__ import annotations

import ast
from itertools import groupby
from typing import Any, Literal

from torch import nn

from normless.errors import FixedArgumentError
from normless.recording._places import Place

Order = Literal["once", "cycle", "loop"]
LOOPS = (ast.For, ast.While)
REPEATING = (
    *LOOPS, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.FunctionDef, ast.Lambda,
)  # fmt: skip


def turn(turns: list[int], place: int, modules: tuple[nn.Module, ...], order: Order = "once") -> nn.Module:
    """Return the child for the next run of an expression in one run of its method.

    The children take turns `once`, or in each step of a loop (`cycle`), or a child serves all runs of an inner
    `loop`, whose starts are counted elsewhere.
    """
    turns[place] += order != "loop"
    if order == "cycle":
        return modules[(turns[place] - 1) % len(modules)]
    if turns[place] > len(modules):
        raise FixedArgumentError(
            f"A converted network repeats an operation {turns[place]} times or more that ran {len(modules)} times on "
            "the example inputs of its conversion, so a module is missing. Convert the original network with "
            "example inputs for which the operation runs as often."
        )
    return modules[turns[place] - 1]


def in_turns(names: list[str]) -> tuple[Order, list[str]]:
    """Return the order in which the children of these names, one for each run, take turns, and each child's name."""
    own = [*dict.fromkeys(names)]
    sizes = [size for size in range(1, len(names)) if len(names) % size == 0]
    period = next((size for size in sizes if names == names[:size] * (len(names) // size)), 0)
    if period:
        return "cycle", names[:period]
    is_grouped = len(own) < len(names) and own == [name for name, _ in groupby(names)]
    return ("loop", own) if is_grouped else ("once", names)


def contains(loop: Any, place: Place) -> bool:
    """Whether a place is in the body of a loop, or in another expression or definition."""
    first, last, start, end = place.position
    body = (loop.body[0], loop.body[-1]) if isinstance(loop, LOOPS) else (loop, loop)
    starts_after = (body[0].lineno, body[0].col_offset) <= (first, start)
    return bool(starts_after and (last, end) <= (body[1].end_lineno, body[1].end_col_offset))
