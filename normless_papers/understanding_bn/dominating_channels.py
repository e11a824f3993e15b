"""Channels that dominate: gradients by channel (figures 7 and 19), contributions (appendix K)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import PLOTS, Plot, scheme_ink
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.probes import ChannelContributions, channel_gradient_spread, dominance_table
from normless_papers.stated_claims import Tests, exceeds, lies_within
from normless_papers.understanding_bn.initial_pass import READING_LAYERS, pass_of
from normless_papers.understanding_bn.initializations import INKS, Draw, Initializations, Measured, decades

_EARLY, _LATE = (2, 10), (95, 108)


def _channel_pairs(facts: Measured) -> Tests:
    share, rank, variation = map(facts.estimates, ("rank_one_share", "effective_rank", "variation"))
    return {
        "Without batch norm the matrix is close to low rank: a factor per in-channel times one per out-channel "
        "explains more than half of what varies in it.": exceeds(share[0], 0.5),
        "With batch norm that explains less.": exceeds(*share),
        "The effective rank is larger with batch norm.": exceeds(*reversed(rank)),
        "Some channels have consistently large, others small gradients without batch norm: entries vary by more "
        "than their mean.": exceeds(variation[0], 1.0),
        "With batch norm they vary by less than their mean.": exceeds(1.0, variation[1]),
    }


@artefact("understanding-bn/figure-7", basis="measurement", checks=_channel_pairs)
def channel_pairs(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 7: gradients between in- and out-channels of layer 45 are close to low rank without batch norm."""
    setting = Initializations(context, data, batch_size, draws)
    columns = ["variation", "effective_rank", "rank_one_share", "predicted_rank_one_share"]

    def matrix(draw: Draw, axes: Axes, title: str) -> None:
        PAIRS(pass_of(draw)["pairs"], axes, ink=scheme_ink(INKS[draw.batch_norm]), title=f"{title}, layer 45")

    return setting.evidence(
        lambda draw: pass_of(draw)["pair_structure"][columns],
        "`variation` is the standard deviation of the entries over their mean; `effective_rank` is the "
        "exponential of the entropy of the singular values, between 1 and 32. The figure shows the first draw, "
        "channels sorted.",
        draw=lambda: setting.side_by_side(matrix, width=4.3, height=3.6),
        layer=45,
    )


def _channel_gradients(facts: Measured) -> Tests:
    without, with_norm = (facts.pivoted("part", ["mean", "decades"], batch_norm=kind) for kind in (False, True))
    scales = [decades(rows["mean"]["early"] / rows["mean"]["late"]) for rows in (without, with_norm)]
    return {
        "Without batch norm gradients have larger scales in early layers than in late ones (log₁₀ of the ratio "
        "of mean |gradient| above 0).": exceeds(scales[0], 0.0),
        "With batch norm they are similarly scaled in all layers: early and late ones within an order of "
        "magnitude (log₁₀ of the ratio).": lies_within(scales[1], -1.0, 1.0),
        "Without batch norm gradients differ more from channel to channel within early layers than within late "
        "ones (the deviation of log₁₀|gradient| over the channels of a layer).": exceeds(
            without["decades"]["early"], without["decades"]["late"]
        ),
    }


@artefact("understanding-bn/figure-19", basis="measurement", checks=_channel_gradients)
def channel_gradients(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 19: without batch norm gradients differ much between channels in early layers, little in late ones."""
    setting = Initializations(context, data, batch_size, draws)

    def spread(draw: Draw) -> pd.DataFrame:
        by_layer = channel_gradient_spread(pass_of(draw)["channels"]).set_index("order")
        rows = []
        for part, (first, last) in (("early", _EARLY), ("late", _LATE)):
            mean = by_layer.loc[first:last, ["mean", "standard_deviation", "decades"]].mean()
            rows.append({"layers": f"{first} to {last}", "part": part} | mean.to_dict())
        return pd.DataFrame(rows)

    return setting.evidence(
        spread,
        "The caption claims larger scales in early layers, section I.2 scales within a layer that differ by the "
        "conditioning of the network ahead; both are checked. The figure shows the first draw.",
        draw=lambda: PLOTS["channel_gradients"](setting.shown(lambda draw: pass_of(draw)["channels"])),
        early=f"layers {_EARLY[0]} to {_EARLY[1]}",
        late=f"layers {_LATE[0]} to {_LATE[1]}",
    )


def _dominating_channels(facts: Measured) -> Tests:
    averages = facts.table.groupby(["batch_norm", "draw"])[["mean_correlation", "effective_share"]].mean()
    without, with_norm = averages.loc[False], averages.loc[True]
    return {
        "Without batch norm channels with larger means contribute more: the rank correlation of a channel's "
        "contribution with its |mean| is above 0.5.": exceeds(without["mean_correlation"], 0.5),
        "Effectively fewer channels matter without batch norm (1/Σ share² over their number).": exceeds(
            with_norm["effective_share"], without["effective_share"]
        ),
        "Effectively few channels matter without it: less than half of them.": exceeds(
            0.5, without["effective_share"]
        ),
    }


@artefact("understanding-bn/dominating-channels", basis="measurement", checks=_dominating_channels)
def dominating_channels(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Appendix K: channels with large means contribute the most to the layer above; few matter without batch norm."""
    setting = Initializations(context, data, batch_size, draws)
    columns = ["order", "channels", "mean_correlation", "effective_share", "top_tenth_share"]
    return setting.evidence(
        lambda draw: dominance_table(pass_of(draw)["contributions"])[columns].rename(columns={"order": "layer"}),
        "The paper gives no data. Measured is the mean magnitude that every in-channel alone adds to the output "
        "of the second convolution of four blocks; checks are of averages over the four. The figure shows the "
        "first draw.",
        draw=lambda: ChannelContributions.plot(setting.shown(lambda draw: pass_of(draw)["contributions"])),
        layers=list(READING_LAYERS),
    )


def _sorted_by_mean(pairs: pd.DataFrame) -> pd.DataFrame:
    """Channels by their means, the largest first, and gradients in multiples of the mean over all."""
    ranks = {
        name: pairs.groupby(name)["gradient"].mean().rank(ascending=False, method="first") - 1
        for name in ("out_channel", "in_channel")
    }
    placed = {name: pairs[name].map(rank) for name, rank in ranks.items()}
    return pairs.assign(gradient=pairs["gradient"] / (pairs["gradient"].mean() or 1.0), **placed)


# Of one layer; channels that are consistently large gather in a corner.
PAIRS = Plot(
    "heat_map",
    _sorted_by_mean,
    x="in_channel",
    y="out_channel",
    value="gradient",
    unit="× mean",
    size=(4.3, 3.6),
    title="Gradient by channels",
    x_label="in-channel, sorted",
    y_label="out-channel, sorted",
)
