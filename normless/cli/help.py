"""The help of a command, in the words of its user: no types of Python, and defaults as they would be written."""

from __future__ import annotations

from argparse import SUPPRESS, Action, RawDescriptionHelpFormatter
from typing import Any

from jsonargparse import DefaultHelpFormatter


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Shows defaults and what is required, and leaves the lines of descriptions and examples as they are."""

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        default = "" if action.nargs == 0 else _written(action.default)
        if action.required and action.option_strings:
            return f"{text} (required)"
        return f"{text} (default: {default})" if default and action.option_strings else text

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [line for part in text.splitlines() for line in super(HelpFormatter, self)._split_lines(part, width)]

    def _format_args(self, action: Action, default_metavar: str) -> str:
        # An option that is left out has no value; a value for that is for files.
        return super()._format_args(action, default_metavar).replace(",null}", "}")


def _written(default: Any) -> str:
    """A default as it would be written on the command line; empty for none."""
    if default is None or default == SUPPRESS:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
