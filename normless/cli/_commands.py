"""The registry of commands; those of this package are in ``commands.yaml``.

Other packages add a `Command` by an entry point of the group ``normless.commands``. A command of two words, such as
``sweep run``, belongs to a group; its name has a dot between the words.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml

from normless.errors import MissingExtraError
from normless.extras import named_missing
from normless.registry import Registry


@dataclass(frozen=True)
class Command:
    """A command: its line in the main help, its implementation, an example, and whether it resumes when repeated.

    The implementation is a module with ``add_arguments`` and ``run``, or ``MODULE:NAME`` of an object with them.
    """

    help: str
    module: str
    example: str
    resumes: bool = False

    def implementation(self) -> Any:
        """Import the module with ``add_arguments`` and ``run``."""
        try:
            return resolve_name(self.module)
        except ModuleNotFoundError as error:
            raise named_missing("This command", error) from error


def help_of(name: str) -> str:
    """Return the line of a command in the main help, or the extra that it needs if that is not installed."""
    try:
        return COMMANDS[name].help
    except MissingExtraError as error:
        return str(error)


COMMANDS = Registry[Command]("command")


def tasks_of(name: str) -> list[str]:
    """Return the tasks of a command besides its own, as text of train: its name, a dot and a task is in the table."""
    return [known.partition(".")[2] for known in COMMANDS if name in COMMANDS and known.startswith(f"{name}.")]


def is_task(name: str) -> bool:
    """Return whether a name in the table is a command for one of its tasks."""
    return "." in name and name.partition(".")[0] in COMMANDS


for _name, _stated in yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text("utf-8")).items():
    COMMANDS.register(_name)(Command(**_stated))
