"""What an artefact would measure if its paper were right, and if it were wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class World:
    """The facts of an artefact's checks, made up; each function is given an empty folder.

    Attributes:
        published: facts as the paper prints them; where it prints no number, as its text says.
        opposite: facts that contradict every check's claim.
    """

    published: Callable[[Path], Any]
    opposite: Callable[[Path], Any]


def given(published: Any, opposite: Any) -> World:
    """A world of facts that need no folder."""
    return World(lambda folder: published, lambda folder: opposite)
