"""Worlds of training artefacts: how their runs end, by labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from invented_runs import World as Ends
from invented_runs import measured
from worlds.world import World


def trained(artefact: str, published: Ends, opposite: Ends, **changes: Any) -> World:
    """The worlds of an artefact by how its runs end at the paper's budget, some of its settings changed.

    The facts do not depend on the folder and are made once.
    """
    made: dict[str, Any] = {}

    def facts(name: str, ends: Ends, folder: Path) -> Any:
        if name not in made:
            made[name] = measured(artefact, ends, folder, **changes)[0].facts
        return made[name]

    return World(
        published=lambda folder: facts("published", published, folder),
        opposite=lambda folder: facts("opposite", opposite, folder),
    )


def size_of(labels: Mapping[str, str]) -> int:
    """The batch size of a run."""
    return int(labels["batch_size"])
