"""Values as text: calls such as ``wide_resnet(depth=16)``, and numbers that JSON does not support."""

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
RUN_FILE = "config.yaml"
"""The file that makes a folder a run of `normless train`."""
_OF_FILE = re.compile(r"(.*\.py):(\s*\w+\s*(?:\(.*\))?)\s*", re.DOTALL)


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name`` or ``name(key=value, …)`` into name and keyword arguments; ValueError for any other form.

    A source before the name, as in ``my_schemes.py:name`` or ``package.module:name``, is part of the name. Values are
    Python literals; anything else (``1/sqrt(L)``, ``weight``) is a string without spaces. Nothing is evaluated.
    """
    problem = f"Expected NAME or NAME(key=value, …), got {text!r}"
    source, call = split_source(text)
    try:
        tree = ast.parse(call, mode="eval").body
    # Raised for invalid characters and for thousands of brackets.
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
    """Return the text that `parse_call` reads as this name and these arguments, which must be Python literals."""
    for key, value in arguments.items():
        with suppress(ValueError, SyntaxError):
            if ast.literal_eval(repr(value)) == value:
                continue
        raise ValueError(f"Expected a number, a text, True, False, None or a tuple as {key}, got {value!r}.")
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" if arguments else name


def jsonable(value: Any) -> Any:
    """Replace numbers that JSON lacks in a nested value: NaN becomes None, infinities `"inf"` and `"-inf"`."""
    if isinstance(value, dict):
        return {str(name): jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else str(value)
    return value


def absolute(text: str) -> str:
    """Make the path of the file in the text of a call absolute."""
    source, call = split_source(text)
    return f"{Path(source[:-1]).resolve()}:{call}" if source.endswith(".py:") else text.strip()


def split_terms(text: str) -> list[str]:
    """Split ``a(x=1) + b + c(y=2)`` into its terms; a text without a plus is a single term.

    If the text names a file, whose path may contain a plus, a plus between terms has a space on either side.
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
    """Split a text into the source before a call, with its colon or empty, and the call."""
    match = _OF_FILE.fullmatch(text.strip())
    if match is not None:
        return f"{match[1]}:", match[2].strip()
    head, opening, rest = text.strip().partition("(")
    source, colon, name = head.partition(":") if ":" in head else ("", "", head)
    return source + colon, f"{name.strip()}{opening}{rest}"


def is_saved(folder: str | Path) -> bool:
    """Whether a folder contains a saved network; a text that is too long for a path does not."""
    return os.path.isfile(Path(folder) / RECIPE_FILE)  # noqa: PTH113


def is_run(folder: str | Path) -> bool:
    """Whether a folder contains a run of `normless train`, and no saved network."""
    return os.path.isfile(Path(folder) / RUN_FILE) and not is_saved(folder)  # noqa: PTH113


def holds_network(folder: str | Path) -> bool:
    """Whether a folder contains a saved network or a run."""
    return is_saved(folder) or is_run(folder)


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node).replace(" ", "")
