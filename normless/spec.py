"""Text such as ``skipinit(alpha=1)`` or ``wide_resnet(depth=16, width=4)`` read as a name and its arguments."""

from __future__ import annotations

import ast
from typing import Any


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name`` or ``name(key=value, …)`` into the name and its keyword arguments.

    A source before the name, as in ``my_schemes.py:name`` or ``package.module:name``, stays part of it.

    Values are Python literals; anything else (``1/sqrt(L)``, ``weight``) is kept as a string without spaces.
    Nothing is ever evaluated.

    Raises:
        ValueError: the text is not of that form.
    """
    problem = f"Expected NAME or NAME(key=value, …), got {text!r}"
    head, opening, rest = text.strip().partition("(")
    source, colon, name = head.rpartition(":")
    try:
        tree = ast.parse(f"{name.strip()}{opening}{rest}", mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{problem}: {error.msg}.") from error
    if isinstance(tree, ast.Name):
        return f"{source}{colon}{tree.id}", {}
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
        raise ValueError(f"{problem}.")
    if tree.args or any(keyword.arg is None for keyword in tree.keywords):
        raise ValueError(f"{problem}: every argument needs its name, as in {tree.func.id}(key=value).")
    return f"{source}{colon}{tree.func.id}", {str(keyword.arg): _value(keyword.value) for keyword in tree.keywords}


def split_terms(text: str) -> list[str]:
    """The terms of ``a(x=1) + b + c(y=2)`` as texts; a text that is no sum is its only term."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return [text]
    terms: list[str] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        terms.insert(0, ast.unparse(tree.right))
        tree = tree.left
    return [ast.unparse(tree), *terms] if terms else [text]


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node).replace(" ", "")
