"""The five ways in which a table is drawn."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless_lab.plots.grammars.heat_map import heat_map as heat_map
    from normless_lab.plots.grammars.histogram import histogram as histogram
    from normless_lab.plots.grammars.lines import lines as lines
    from normless_lab.plots.grammars.measured_on_predicted import measured_on_predicted as measured_on_predicted
    from normless_lab.plots.grammars.points import points as points
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
