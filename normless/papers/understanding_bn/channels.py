"""Channels that dominate: gradients by channel (figures 7 and 19), contributions (appendix K)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from normless.papers.artefact import Context, artefact
from normless.papers.estimates import decades_over_draws, over_draws
from normless.papers.evidence import Evidence
from normless.papers.understanding_bn.networks import INKS, Draw, Initializations, conv_path
from normless.papers.verdict import Estimate, larger
from normless.probes.backward.channel_contributions import ChannelContributions, dominance_table
from normless.probes.backward.channel_gradients import ChannelGradients, channel_gradient_spread
from normless.probes.backward.channel_pairs import ChannelPairs
from normless.probes.watching.observe import observe
from normless.report.axes import new_panels, title_axes
from normless.report.probes.channel_contributions import contributions_by_channel_mean
from normless.report.probes.channel_gradients import channel_gradients_by_layer
from normless.report.probes.channel_pairs import channel_pair_matrix

_EARLY, _LATE = (2, 10), (95, 108)
_READ = (19, 35, 55, 91)


@artefact("understanding-bn/figure-7", basis="measurement")
def channel_pairs(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 7: gradients between in- and out-channels of layer 45 are close to low rank without batch norm."""
    setting = Initializations(context, data, batch_size, draws)
    matrices: dict[bool, pd.DataFrame] = {}

    def structure(draw: Draw) -> pd.DataFrame:
        pairs = ChannelPairs([conv_path(45)])
        observe(draw.model, [pairs], draw.inputs, draw.targets)
        matrices.setdefault(draw.batch_norm, pairs.table())
        columns = ["variation", "effective_rank", "rank_one_share", "predicted_rank_one_share"]
        return pairs.structure()[columns]

    measured = setting.measured(structure)
    without, with_norm = (measured[measured["batch_norm"] == kind] for kind in (False, True))
    share, rank, variation = (
        [over_draws(rows[name]) for rows in (without, with_norm)]
        for name in ("rank_one_share", "effective_rank", "variation")
    )
    checks = (
        larger(
            "Without batch norm a factor per in-channel times one per out-channel explains more than 0.9 of what "
            "varies in the matrix.",
            share[0],
            Estimate(0.9),
        ),
        larger("With batch norm the structure disappears: less than 0.9 is explained.", Estimate(0.9), share[1]),
        larger("The effective rank is smaller without batch norm.", rank[1], rank[0]),
        larger(
            "Some channels have consistently large, others small gradients without batch norm: entries vary by more "
            "than their mean.",
            variation[0],
            Estimate(1.0),
        ),
        larger("With batch norm they vary by less than their mean.", Estimate(1.0), variation[1]),
    )
    return Evidence(
        measured,
        checks,
        setting.setup(layer=45),
        draw=lambda: _matrices(matrices),
        remarks=(
            "`variation` is the standard deviation of the entries over their mean; `effective_rank` is the "
            "exponential of the entropy of the singular values, between 1 and 32. The figure shows the first draw, "
            "channels sorted.",
        ),
    )


def _matrices(matrices: dict[bool, pd.DataFrame]) -> Axes:
    panels = new_panels(2, width=4.3, height=3.6)
    for axes, kind, name in zip(panels, (False, True), ("Without batch norm", "With batch norm"), strict=True):
        channel_pair_matrix(matrices[kind], axes, scheme=INKS[kind])
        title_axes(axes, f"{name}, layer 45")
    return panels[0]


@artefact("understanding-bn/figure-19", basis="measurement")
def channel_gradients(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 19: without batch norm gradients of channels differ a lot in early layers and little in late ones."""
    setting = Initializations(context, data, batch_size, draws)
    shown: list[pd.DataFrame] = []

    def spread(draw: Draw) -> pd.DataFrame:
        channels = ChannelGradients()
        observe(draw.model, [channels], draw.inputs, draw.targets)
        if draw.number == 0:
            shown.append(channels.table().assign(scheme=INKS[draw.batch_norm]))
        by_layer = channel_gradient_spread(channels.table()).set_index("order")
        rows = []
        for part, (first, last) in (("early", _EARLY), ("late", _LATE)):
            mean = by_layer.loc[first:last, ["mean", "standard_deviation", "decades"]].mean()
            rows.append({"layers": f"{first} to {last}", "part": part} | mean.to_dict())
        return pd.DataFrame(rows)

    measured = setting.measured(spread)
    by_part = measured.pivot(
        index=["batch_norm", "draw"], columns="part", values=["mean", "standard_deviation", "decades"]
    )
    without, with_norm = by_part.loc[False], by_part.loc[True]
    ratios = [
        decades_over_draws(rows["standard_deviation"]["early"] / rows["standard_deviation"]["late"])
        for rows in (without, with_norm)
    ]
    checks = (
        larger(
            "Without batch norm the standard deviation of |gradient| over channels is more than ten times larger in "
            "early layers than in late ones (log₁₀ of the ratio).",
            ratios[0],
            Estimate(1.0),
        ),
        larger(
            "With batch norm it is similar in all layers: less than ten times larger in early layers (log₁₀).",
            Estimate(1.0),
            ratios[1],
        ),
        larger(
            "Apart from their scale, too, channels of early layers differ a lot more than those of late ones without "
            "batch norm: the deviation of log₁₀|gradient| within a layer is more than 1.5 times as large (the "
            "section's reading).",
            over_draws(without["decades"]["early"] / without["decades"]["late"]),
            Estimate(1.5),
        ),
    )
    return Evidence(
        measured,
        checks,
        setting.setup(early=f"layers {_EARLY[0]} to {_EARLY[1]}", late=f"layers {_LATE[0]} to {_LATE[1]}"),
        draw=lambda: channel_gradients_by_layer(pd.concat(shown)),
        remarks=(
            "The caption speaks of larger scales in early layers, section I.2 of scales within a layer that differ "
            "by the conditioning of the network ahead; both are checked. The figure shows the first draw.",
        ),
    )


@artefact("understanding-bn/dominating-channels", basis="measurement")
def dominating_channels(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Appendix K: channels with large means contribute the most to the layer above; few matter without batch norm."""
    setting = Initializations(context, data, batch_size, draws)
    shown: list[pd.DataFrame] = []

    def dominance(draw: Draw) -> pd.DataFrame:
        contributions = ChannelContributions([conv_path(layer) for layer in _READ])
        observe(draw.model, [contributions], draw.inputs)
        if draw.number == 0:
            shown.append(contributions.table().assign(scheme=INKS[draw.batch_norm]))
        columns = ["order", "channels", "mean_correlation", "effective_share", "top_tenth_share"]
        return dominance_table(contributions.table())[columns].rename(columns={"order": "layer"})

    measured = setting.measured(dominance)
    averages = measured.groupby(["batch_norm", "draw"])[["mean_correlation", "effective_share"]].mean()
    without, with_norm = averages.loc[False], averages.loc[True]
    checks = (
        larger(
            "Without batch norm the rank correlation of a channel's contribution with its |mean| is above 0.9.",
            over_draws(without["mean_correlation"]),
            Estimate(0.9),
        ),
        larger(
            "Effectively fewer channels matter without batch norm (1/Σ share² over their number).",
            over_draws(with_norm["effective_share"]),
            over_draws(without["effective_share"]),
        ),
        larger(
            "Effectively few channels matter without it: less than half of them.",
            Estimate(0.5),
            over_draws(without["effective_share"]),
        ),
    )
    return Evidence(
        measured,
        checks,
        setting.setup(layers=list(_READ)),
        draw=lambda: contributions_by_channel_mean(pd.concat(shown)),
        remarks=(
            "The paper gives no data. Measured is the mean magnitude that every in-channel alone adds to the output "
            "of the second convolution of four blocks; checks are of averages over the four. The figure shows the "
            "first draw.",
        ),
    )
