"""Figures with several panels, of the noise of a step, and of steps of descent."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from normless_lab.plots import new_panels
from normless_papers.understanding_bn.equations import NOISE


def test_panels_lie_on_one_figure_row_by_row() -> None:
    panels = new_panels(3, 2, width=2, height=1)
    assert len(panels) == 6
    (figure,) = {id(axes.get_figure()): axes.get_figure() for axes in panels}.values()
    assert figure is not None
    assert tuple(figure.get_size_inches()) == (6, 2)
    assert [axes.get_subplotspec().rowspan.start for axes in panels] == [0, 0, 0, 1, 1, 1]  # type: ignore[union-attr]


def test_noise_is_drawn_on_its_prediction() -> None:
    table = pd.DataFrame({"batch_size": [1, 4, 1, 4], "learning_rate": [0.1, 0.1, 0.2, 0.2]})
    table["predicted_noise"] = table["learning_rate"] ** 2 / table["batch_size"]
    axes = NOISE(table.assign(noise=table["predicted_noise"] * 1.1))
    lines = {str(line.get_label()): np.asarray(line.get_ydata(), float) for line in axes.get_lines()}
    assert lines["α = 0.2, measured"] == pytest.approx(lines["α = 0.2, predicted"] * 1.1)
    assert lines["α = 0.1, predicted"] == pytest.approx([0.01, 0.0025])
    with pytest.raises(ValueError, match="noise"):
        NOISE(table)
