"""The artefacts of the Understanding BN paper as published, and as the opposite."""

from __future__ import annotations

from worlds import understanding_bn_matrices, understanding_bn_probes, understanding_bn_runs, understanding_bn_updates
from worlds.world import World

WORLDS: dict[str, World] = {
    **understanding_bn_probes.WORLDS,
    **understanding_bn_matrices.WORLDS,
    **understanding_bn_runs.WORLDS,
    **understanding_bn_updates.WORLDS,
}
