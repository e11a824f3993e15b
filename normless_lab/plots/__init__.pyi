from ._frame import new_panels as new_panels
from ._frames import Law as Law
from ._line_plots import lines as lines
from ._page import (
    Column as Column,
    Table as Table,
    description as description,
    inline_image as inline_image,
    save_png as save_png,
    save_svg as save_svg,
    template as template,
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
from ._plot import BAR_INKS as BAR_INKS, PLOTS as PLOTS, Plot as Plot
from ._point_plots import histogram as histogram
from ._structure import blocks_on_trunk as blocks_on_trunk
from ._sweep_figures import (
    accuracy_against_epoch as accuracy_against_epoch,
    accuracy_against_rate as accuracy_against_rate,
    optimum_against as optimum_against,
    rate_against as rate_against,
)
