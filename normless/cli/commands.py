"""The table of commands, those of this package from ``commands.yaml``.

Other packages and distributions add theirs by entry points of the group ``normless.commands`` that name a `Command`.
A command of two words, as ``sweep run``, is one of a group; its name has a dot between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml

from normless.errors import MissingExtraError
from normless.registry import Registry


@dataclass(frozen=True)
class Command:
    """One command: its line in the main help, its implementation, an example, and whether it resumes when repeated.

    The implementation is a module with ``add_arguments`` and ``run``, or ``MODULE:NAME`` of an object with them.
    """

    help: str
    module: str
    example: str
    resumes: bool = False

    def implementation(self) -> Any:
        """Import the module with ``add_arguments`` and ``run``."""
        return resolve_name(self.module)


def help_of(name: str) -> str:
    """Return the line of a command in the main help, or the extra that it needs if that is not installed."""
    try:
        return COMMANDS[name].help
    except MissingExtraError as error:
        return str(error)


COMMANDS = Registry[Command]("command")
for _name, _stated in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")).items():
    COMMANDS.register(_name)(Command(**_stated))
