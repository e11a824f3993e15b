"""Which figures show the tables of `normless.probes.probe`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes

from normless.plots.probes.batch_statistics import batch_statistics_against_block
from normless.plots.probes.channel_contributions import contributions_by_channel_mean
from normless.plots.probes.channel_gradients import channel_gradients_by_layer
from normless.plots.probes.channel_moments import channel_moments_against_depth
from normless.plots.probes.example_covariance import example_correlation_against_block
from normless.plots.probes.gradient_sums import input_independence_against_layer
from normless.plots.probes.logit_gradients import bias_gradients, logit_gradient_map

Draw = Callable[[pd.DataFrame], Axes]

FIGURES: Mapping[str, tuple[str, Draw]] = MappingProxyType(
    {
        "signal": ("batch statistics against block", batch_statistics_against_block),
        "covariance": ("correlation of examples against block", example_correlation_against_block),
        "activations": ("channel variance against depth", channel_moments_against_depth),
        "contributions": ("contributions by channel mean", contributions_by_channel_mean),
        "channel_gradients": ("channel gradients by layer", channel_gradients_by_layer),
        "gradient_sums": ("input independence against layer", input_independence_against_layer),
        "logits": ("bias gradients by class", bias_gradients),
        "logit_matrix": ("logit gradients by example and class", logit_gradient_map),
    }
)


def figures_of(tables: Mapping[str, pd.DataFrame], scheme: str) -> Iterator[tuple[str, str, Axes]]:
    """Draw what can be drawn of some tables: the name of the table, the title and the axes of each figure.

    Args:
        tables: by the name of their probe; those without a figure, or without rows, are passed over.
        scheme: the network's, by whose colour it is drawn.
    """
    for name, table in tables.items():
        if name in FIGURES and len(table):
            title, draw = FIGURES[name]
            yield name, title, draw(table.assign(scheme=scheme))
