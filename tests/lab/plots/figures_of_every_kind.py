"""A figure with whatever matplotlib has an SVG element for."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def every_kind() -> Axes:
    """Images, hatches, markers, clipped and dashed lines, arrows, filled and gridded areas, formulas, two lines."""
    numbers = np.arange(25.0).reshape(5, 5)
    figure = Figure()
    image, bars, points, areas = (figure.add_subplot(2, 2, place) for place in (1, 2, 3, 4))
    figure.colorbar(image.imshow(numbers), ax=image)
    bars.bar([1, 2], [3, 4], hatch="//", label="x & <y>")
    bars.set_title(r"$\alpha^2$ in \$")
    bars.legend()
    points.scatter(range(9), range(1, 10), c=range(9), alpha=0.5, marker="*")
    points.annotate("here", (1, 1), (3, 3), arrowprops={"arrowstyle": "->"})
    points.set_yscale("log")
    areas.fill_between(range(5), range(5), alpha=0.3)
    areas.plot(range(5), "--")
    areas.pcolormesh(numbers)
    areas.contourf(numbers)
    areas.text(1, 1, "two\nlines")
    return image
