"""Figures and pages from tidy tables."""

from typing import TYPE_CHECKING

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "Drawing", "matplotlib", "jinja2")

if TYPE_CHECKING:
    from normless_lab.plots.axes import name_axes as name_axes
    from normless_lab.plots.axes import new_axes as new_axes
    from normless_lab.plots.axes import new_panels as new_panels
    from normless_lab.plots.axes import title_axes as title_axes
    from normless_lab.plots.frames import Frame as Frame
    from normless_lab.plots.frames import Law as Law
    from normless_lab.plots.grammars.heat_map import heat_map as heat_map
    from normless_lab.plots.grammars.histogram import histogram as histogram
    from normless_lab.plots.grammars.lines import lines as lines
    from normless_lab.plots.grammars.measured_on_predicted import measured_on_predicted as measured_on_predicted
    from normless_lab.plots.grammars.points import points as points
    from normless_lab.plots.page import Column as Column
    from normless_lab.plots.page import Figure as Figure
    from normless_lab.plots.page import Page as Page
    from normless_lab.plots.page import Table as Table
    from normless_lab.plots.page import render_page as render_page
    from normless_lab.plots.page import template as template
    from normless_lab.plots.page import write_page as write_page
    from normless_lab.plots.palette import QUIET as QUIET
    from normless_lab.plots.palette import ROLE_INKS as ROLE_INKS
    from normless_lab.plots.palette import SCHEME_INKS as SCHEME_INKS
    from normless_lab.plots.palette import TEXT as TEXT
    from normless_lab.plots.palette import VERDICT_INKS as VERDICT_INKS
    from normless_lab.plots.palette import Ink as Ink
    from normless_lab.plots.palette import css_variables as css_variables
    from normless_lab.plots.palette import inks_of as inks_of
    from normless_lab.plots.palette import scheme_ink as scheme_ink
    from normless_lab.plots.palette import series_ink as series_ink
    from normless_lab.plots.palette import shades as shades
    from normless_lab.plots.plot import Plot as Plot
    from normless_lab.plots.probe_plots import BAR_INKS as BAR_INKS
    from normless_lab.plots.probe_plots import PLOTS as PLOTS
    from normless_lab.plots.probe_plots import figures_of as figures_of
    from normless_lab.plots.save import description as description
    from normless_lab.plots.save import inline_image as inline_image
    from normless_lab.plots.save import on_pages as on_pages
    from normless_lab.plots.save import save_png as save_png
    from normless_lab.plots.save import save_svg as save_svg
    from normless_lab.plots.save import svg_text as svg_text
    from normless_lab.plots.structure import blocks_on_trunk as blocks_on_trunk
    from normless_lab.plots.sweep_figures import accuracy_against_epoch as accuracy_against_epoch
    from normless_lab.plots.sweep_figures import accuracy_against_rate as accuracy_against_rate
    from normless_lab.plots.sweep_figures import optimum_against as optimum_against
    from normless_lab.plots.sweep_figures import rate_against as rate_against
    from normless_lab.plots.sweep_figures import skip_variance_against_block as skip_variance_against_block
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
