from ._frame import name_axes as name_axes, new_axes as new_axes, new_panels as new_panels, title_axes as title_axes
from ._frames import Law as Law, Style as Style
from ._line_plots import lines as lines, measured_on_predicted as measured_on_predicted
from ._page import (
    Column as Column,
    Figure as Figure,
    Page as Page,
    Table as Table,
    description as description,
    inline_image as inline_image,
    on_pages as on_pages,
    render_page as render_page,
    save_png as save_png,
    save_svg as save_svg,
    svg_text as svg_text,
    template as template,
    write_page as write_page,
)
from ._palette import (
    QUIET as QUIET,
    ROLE_INKS as ROLE_INKS,
    SCHEME_INKS as SCHEME_INKS,
    TEXT as TEXT,
    VERDICT_INKS as VERDICT_INKS,
    Ink as Ink,
    css_variables as css_variables,
    inks_of as inks_of,
    scheme_ink as scheme_ink,
    series_ink as series_ink,
    shades as shades,
)
from ._plot import BAR_INKS as BAR_INKS, PLOTS as PLOTS, Plot as Plot, figures_of as figures_of
from ._point_plots import heat_map as heat_map, histogram as histogram, points as points
from ._structure import blocks_on_trunk as blocks_on_trunk
from ._sweep_figures import (
    accuracy_against_epoch as accuracy_against_epoch,
    accuracy_against_rate as accuracy_against_rate,
    optimum_against as optimum_against,
    rate_against as rate_against,
    skip_variance_against_block as skip_variance_against_block,
)
