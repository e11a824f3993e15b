"""The training artefacts of the SkipInit and ZeroInit papers."""

from __future__ import annotations

from worlds import de_smith_batches, de_smith_depth, de_smith_imagenet
from worlds.world import World

_ALL = {**de_smith_depth.WORLDS, **de_smith_batches.WORLDS, **de_smith_imagenet.WORLDS}
SKIPINIT: dict[str, World] = {name: world for name, world in _ALL.items() if name.startswith("skipinit/")}
ZEROINIT: dict[str, World] = {name: world for name, world in _ALL.items() if name.startswith("zeroinit/")}
