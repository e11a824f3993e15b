"""The help of a command, without Python types and with defaults as on the command line."""

from __future__ import annotations

from argparse import SUPPRESS, Action, RawDescriptionHelpFormatter
from typing import Any

from jsonargparse import DefaultHelpFormatter


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Show defaults and required options, and keep the lines of descriptions and examples."""

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        default = "" if action.nargs == 0 else _written(action.default)
        if action.required and action.option_strings:
            return f"{text} (required)"
        return f"{text} (default: {default})" if default and action.option_strings else text

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [line for part in text.splitlines() for line in super(HelpFormatter, self)._split_lines(part, width)]

    def _format_args(self, action: Action, default_metavar: str) -> str:
        # The value null is only needed in files.
        return super()._format_args(action, default_metavar).replace(",null}", "}")


def _written(default: Any) -> str:
    """Return a default as on the command line, or an empty string."""
    if default is None or default == SUPPRESS:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
