"""Values as text: ``wide_resnet(depth=16)`` read as a name and its arguments, numbers that JSON has not."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite, isnan
from pathlib import Path
from typing import Any

RECIPE_FILE = "recipe.json"
"""The file that makes a folder a saved network; see `normless.save`."""
_OF_FILE = re.compile(r"(.*\.py):(\s*\w+\s*(?:\(.*\))?)\s*", re.DOTALL)


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name`` or ``name(key=value, …)`` into name and keyword arguments; ValueError for any other form.

    A source before the name, as in ``my_schemes.py:name`` or ``package.module:name``, stays part of it. Values are
    Python literals; anything else (``1/sqrt(L)``, ``weight``) stays a string without spaces. Nothing is evaluated.
    """
    problem = f"Expected NAME or NAME(key=value, …), got {text!r}"
    source, call = split_source(text)
    try:
        tree = ast.parse(call, mode="eval").body
    # Of characters that are no text, and of thousands of brackets.
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"{problem}: {getattr(error, 'msg', error)}.") from error
    if isinstance(tree, ast.Name):
        return source + tree.id, {}
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
        raise ValueError(f"{problem}.")
    if tree.args or any(keyword.arg is None for keyword in tree.keywords):
        raise ValueError(f"{problem}: every argument needs its name, as in {tree.func.id}(key=value).")
    return source + tree.func.id, {str(keyword.arg): _value(keyword.value) for keyword in tree.keywords}


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    """The text that `parse_call` reads as this name and these arguments, whose values are Python literals."""
    for key, value in arguments.items():
        with suppress(ValueError, SyntaxError):
            if ast.literal_eval(repr(value)) == value:
                continue
        raise ValueError(f"Expected a number, a text, True, False, None or a tuple as {key}, got {value!r}.")
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" if arguments else name


def jsonable(value: Any) -> Any:
    """A nested value without numbers that JSON lacks: NaN becomes None, infinities `"inf"` and `"-inf"`."""
    if isinstance(value, dict):
        return {str(name): jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else str(value)
    return value


def absolute(text: str) -> str:
    """The text of a call with the path of its file, where it has one, made absolute."""
    source, call = split_source(text)
    return f"{Path(source[:-1]).resolve()}:{call}" if source.endswith(".py:") else text.strip()


def split_terms(text: str) -> list[str]:
    """The terms of ``a(x=1) + b + c(y=2)`` as texts; a text that is no sum is its only term.

    Where a file is named, whose path may have a plus in it, a plus that separates terms has a space on either side.
    """
    terms, quote, depth, start = [], "", 0, 0
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "+" and depth == 0 and (".py:" not in text or text[index - 1 : index + 2] == " + "):
            terms.append(text[start:index].strip())
            start = index + 1
    return [*terms, text[start:].strip()]


def split_source(text: str) -> tuple[str, str]:
    """The source before a call with its colon, empty where there is none, and the call."""
    match = _OF_FILE.fullmatch(text.strip())
    if match is not None:
        return f"{match[1]}:", match[2].strip()
    head, opening, rest = text.strip().partition("(")
    source, colon, name = head.partition(":") if ":" in head else ("", "", head)
    return source + colon, f"{name.strip()}{opening}{rest}"


def is_saved(folder: str | Path) -> bool:
    """Whether a folder holds a saved network; a text too long for a path names none."""
    return os.path.isfile(Path(folder) / RECIPE_FILE)  # noqa: PTH113


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node).replace(" ", "")
