"""The artefacts of the SkipInit paper as published, and as the opposite."""

from __future__ import annotations

from worlds import skipinit_methods
from worlds.de_smith_training import SKIPINIT
from worlds.world import World

WORLDS: dict[str, World] = {**SKIPINIT, **skipinit_methods.WORLDS}
