"""The artefacts of the γ guidelines paper as published, and as the opposite."""

from __future__ import annotations

from worlds import gamma_measurements, gamma_training
from worlds.world import World

WORLDS: dict[str, World] = {**gamma_measurements.WORLDS, **gamma_training.WORLDS}
