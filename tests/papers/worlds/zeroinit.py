"""The artefacts of the ZeroInit paper as published, and as the opposite."""

from __future__ import annotations

from worlds import zeroinit_methods
from worlds.world import World

WORLDS: dict[str, World] = {**zeroinit_methods.WORLDS}
