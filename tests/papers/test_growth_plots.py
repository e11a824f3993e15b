"""The plots of growth through the blocks and of agreement with formulas, and several plots on one figure."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from normless_papers.plots import GROWTH

GROWN = pd.DataFrame({"scheme": "none", "block": range(5), "growth": [1, 2, 4, math.inf, 0], "law": 1.0})


def test_growth_has_its_law_where_there_is_one() -> None:
    axes = GROWTH(GROWN)
    law, measured = (line.get_ydata() for line in axes.lines)
    assert list(law) == [1.0] * 5  # type: ignore[arg-type]
    assert measured[2] == 4  # type: ignore[index]
    assert math.isnan(measured[3])  # type: ignore[index]
    assert "none" in {text.get_text() for text in GROWTH(GROWN.assign(law=math.nan)).texts}
    with pytest.raises(ValueError, match="lacks law"):
        GROWTH(GROWN.drop(columns="law"))
