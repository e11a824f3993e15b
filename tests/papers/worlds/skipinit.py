"""The artefacts of the SkipInit paper as published, and as the opposite."""

from __future__ import annotations

from worlds import skipinit_methods
from worlds.world import World

WORLDS: dict[str, World] = {**skipinit_methods.WORLDS}
