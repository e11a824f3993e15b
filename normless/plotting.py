"""Figures of what the library measures, drawn by the laboratory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normless.registry import EXTENSIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from normless.doctor import Watch
    from normless.doctor.trained._diagnosis import Health
    from normless.probes import Measurements
    from normless.residual import ResidualMap


def plot(measured: Measurements | ResidualMap | Watch | Health, *, scheme: str = "network") -> Sequence[Axes]:
    """Draw measurements, a residual map, a watched training or a trained network; a notebook shows images.

        nl.plot(nl.probe(net, (images, labels)))
        nl.plot(nl.residual_map(net, images))

    Args:
        measured: the result of `nl.probe`, which gives a figure for each table that has a plot; the result of
            `nl.residual_map`; that of `nl.watch`, of which the loss or else the gradient's norm is drawn; or that of
            `nl.diagnose_trained`, by layer.
        scheme: the name of the network's lines; the name of a scheme has the colour of the scheme.

    Returns:
        The Axes of each figure, as a list. ``axes.figure.savefig(path)`` writes a figure.

    Raises:
        MissingExtraError: the extra `lab`, which draws, is not installed.
        ValueError: the argument is none of these, or no table has a plot.
    """
    figures: Sequence[Axes] = EXTENSIONS["figures"](measured, scheme)
    return figures
