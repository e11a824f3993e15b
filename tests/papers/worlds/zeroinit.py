"""The artefacts of the ZeroInit paper as published, and as the opposite."""

from __future__ import annotations

from worlds import zeroinit_methods
from worlds.de_smith_training import ZEROINIT
from worlds.world import World

WORLDS: dict[str, World] = {**ZEROINIT, **zeroinit_methods.WORLDS}
