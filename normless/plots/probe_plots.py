"""The plot of each probe's table: a grammar and its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from normless.plots.palette import QUIET, SCHEME_INKS, Ink
from normless.plots.plot import Plot

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def _scheme_alone(scheme: str, _: float) -> str:
    return scheme.partition("(")[0]


BAR_INKS: Mapping[str, Ink] = {"True": SCHEME_INKS["none"], "False": QUIET}

PLOTS: Mapping[str, Plot] = {
    "signal": Plot(
        "measured_on_predicted",
        x="block",
        measured={
            "skip_variance": "skip path",
            "branch_variance": "branch end",
            "norm_variance": "norm: variance",
            "norm_mean_square": "norm: mean²",
        },
        y_limits=(0, None),
        title="Batch statistics at initialization",
        y_label="variance, or squared mean",
    ),
    "covariance": Plot(
        "measured_on_predicted",
        x="block",
        measured={"skip_correlation": "skip path", "branch_correlation": "branch end", "sum_correlation": "sum"},
        y_limits=(None, 1),
        y_marks=[0],
        title="Correlation of examples at initialization",
        y_label="correlation of two examples",
    ),
    "stream": Plot(
        "measured_on_predicted",
        x="block",
        measured={"stream_second_moment": "γ alone"},
        law="expected_stream_second_moment",
        law_name="all weights",
        y_limits=(0, None),
        title="Second moment of the stream by γ",
        y_label="second moment after the block; points measured",
    ),
    "backward": Plot(
        "lines",
        x="block",
        y="gradient_norm",
        log="y",
        title="Gradients of the stream",
        y_label="‖∂L/∂x‖ after the block",
    ),
    "activations": Plot(
        "lines",
        x="order",
        y="variance",
        band="variance_spread",
        end_text=_scheme_alone,
        log="y",
        title="Channels at initialization",
        y_label="mean of channel variance",
    ),
    "gradients": Plot(
        "points",
        x="order",
        y="norm",
        summary="median",
        log="y",
        title="Gradients of parameters",
        y_label="‖gradient‖ of each parameter",
    ),
    "channel_gradients": Plot(
        "points",
        lambda channels: channels.assign(gradient=channels["gradient"].abs()),
        x="order",
        y="gradient",
        summary="median",
        log="y",
        title="Gradients of channels",
        x_label="weight layer",
        y_label="|gradient| of each channel's bias",
    ),
    "logits": Plot(
        "histogram",
        x="class",
        height="bias_gradient",
        bars=True,
        by="favoured",
        inks=BAR_INKS,
        y_marks=[0],
        title="Gradient of the classifier's bias",
        y_label="mean over examples of ∂L_b/∂z_j",
    ),
    "logit_matrix": Plot(
        "heat_map",
        x="class",
        y="example",
        value="gradient",
        signed=True,
        title="Gradients of the logits, ∂L_b/∂z_j",
        x_label="class j",
        y_label="example b",
    ),
}


def figures_of(
    tables: Mapping[str, pd.DataFrame], scheme: str, probes: Mapping[str, object] | None = None
) -> Iterator[tuple[str, str, Axes]]:
    """Draw the tables that have a plot: the name of the table, the title and the axes of each figure.

    Args:
        tables: by the name of their probe; those without a plot, or without rows, are skipped.
        scheme: of the network; decides the colour.
        probes: by name; one that is not in `PLOTS` may state its own plot as the attribute ``plot``, a `Plot` or a
            dictionary of its arguments.
    """
    for name, table in tables.items():
        stated = PLOTS.get(name) or getattr((probes or {}).get(name), "plot", None)
        if stated is not None and len(table):
            plot = stated if isinstance(stated, Plot) else Plot(**stated)
            yield name, str(plot.arguments.get("title", name)), plot(table.assign(scheme=scheme))
