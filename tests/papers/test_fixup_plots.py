"""The plots of Fixup's and ZeroInit's theory draw their tables."""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib.axes import Axes

from normless.plots import new_axes
from normless_papers.fixup.bounds import BOUNDS
from normless_papers.fixup.design_goal import UPDATES
from normless_papers.zeroinit.initialization import CORRELATIONS, L2_SHARES


def line(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    (found,) = [one for one in axes.get_lines() if one.get_label() == label]
    return list(found.get_xdata()), list(found.get_ydata())


def texts(axes: Axes) -> set[str]:
    return {text.get_text() for text in axes.texts}


def by_depth(column: str) -> pd.DataFrame:
    return pd.DataFrame(
        {"scheme": ["fixup", "fixup", "fixup", "none"], "depth": [4, 4, 16, 4], column: [0.2, 0.4, 0.5, 0.7]}
    )


@pytest.mark.parametrize(
    ("draw", "column"),
    [
        (UPDATES, "update_per_rate"),
        (CORRELATIONS, "cosine"),
        (L2_SHARES, "share"),
    ],
)
def test_medians_by_depth_and_the_names_of_schemes(draw: object, column: str) -> None:
    assert callable(draw)
    axes = draw(by_depth(column), new_axes())
    depths, values = line(axes, "fixup")
    assert depths == [4, 16]
    assert values == pytest.approx([0.3, 0.5])
    assert {"fixup", "none"} <= texts(axes)
    axes.figure.draw_without_rendering()
    with pytest.raises(ValueError, match="lacks"):
        draw(by_depth("other"))


def test_bounds_are_medians_and_points() -> None:
    table = pd.DataFrame(
        {"block": [1, 1, 2, 2], "gradient_norm": [2.0, 4.0, 1.0, 3.0], "bound": [1.0, 3.0, -1.0, 2.0]}
    )
    axes = BOUNDS(table)
    assert line(axes, "measured, median") == ([1, 2], [3.0, 2.0])
    assert line(axes, "lower bound, median") == ([1, 2], [2.0, 2.0])
    assert line(axes, "lower bound") == ([1, 1, 2], [1.0, 3.0, 2.0])
    assert {"measured", "lower bound"} <= texts(axes)
