"""The plot of each probe's table, from ``probe_plots.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from normless_lab.plots.palette import QUIET, ROLE_INKS, SCHEME_INKS, Ink
from normless_lab.plots.plot import Plot

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


BAR_INKS: Mapping[str, Ink] = {"True": SCHEME_INKS["none"], "False": QUIET}

# The arguments that are not plain data.
_IN_CODE: Mapping[str, Mapping[str, Any]] = {
    "activations": {"named": lambda scheme, _: scheme.partition("(")[0]},
    "channel_gradients": {"prepare": lambda channels: channels.assign(gradient=channels["gradient"].abs())},
    "gammas": {"inks": {name.removeprefix("γ "): ink for name, ink in ROLE_INKS.items()}},
    "logits": {"inks": BAR_INKS},
}
PLOTS: Mapping[str, Plot] = {
    name: Plot(**stated, **_IN_CODE.get(name, {}))
    for name, stated in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")).items()
}


def figures_of(
    tables: Mapping[str, pd.DataFrame], scheme: str, probes: Mapping[str, object] | None = None
) -> Iterator[tuple[str, str, Axes]]:
    """Draw the tables that have a plot: the name of the table, the title and the axes of each figure.

    Args:
        tables: tables by the name of their probe; tables without a plot, or without rows, are skipped.
        scheme: scheme of the network, which determines the colour.
        probes: by name; one that is not in `PLOTS` may state its own plot as the attribute ``plot``, a `Plot` or a
            dictionary of its arguments.
    """
    for name, table in tables.items():
        stated = PLOTS.get(name) or getattr((probes or {}).get(name), "plot", None)
        if stated is not None and len(table):
            plot = stated if isinstance(stated, Plot) else Plot(**stated)
            yield name, str(plot.arguments.get("title", name)), plot(table.assign(scheme=scheme))
