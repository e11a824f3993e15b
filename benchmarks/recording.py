"""The runs that an artefact of the papers trains at paper budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from normless_lab.train import Settings
from normless_papers.artefact import Artefact, Context


def recorded(artefact: Artefact) -> Mapping[str, Settings]:
    """The configurations by hash, without extensions of the learning rates."""
    trainings = artefact.trainings(Context("paper", Path())).values()
    points = (point for own in trainings for sweep in own.sweeps for point in sweep.points())
    return {point.config.hash: point.config for point in points}
