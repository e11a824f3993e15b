"""The contribution of every in-channel to a layer's output, and the number of channels that matter.

In an unnormalized network some channels have much larger means than others and dominate the neurons of the next layer
("Understanding batch normalization", appendix K).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from normless.nn import ScalarAffine
from normless.probes import by_channel
from normless.residual import Layer, Unresolved
from normless_lab.plots import Law, Plot
from normless_papers.probes.layer_tables import LAYER_COLUMNS, LayerTables, by_layer
from normless_papers.probes.summands import UnknownSummandsError, padded, require_positions, weight_input

# Elements of the contributions in memory at a time: 16 MiB in float32.
_CHUNK = 2**22


def _running_shares(channels: pd.DataFrame) -> pd.DataFrame:
    """Accumulate the channels' shares of the output, those with the largest means first."""
    parts = []
    for _, rows in channels.groupby(["scheme", "layer"], sort=False):
        by_mean = rows.sort_values("mean", key=lambda means: -means.abs(), kind="stable")
        running = by_mean["share"].astype(float).cumsum()
        parts += [by_mean.iloc[:1].assign(part=0.0, running=0.0)]
        parts += [by_mean.assign(part=np.arange(1, len(rows) + 1) / len(rows), running=running)]
    return pd.concat(parts)


@dataclass
class ChannelContributions(LayerTables):
    """Mean magnitude of each in-channel's contribution to a layer's output: a row per layer and in-channel.

    E |Σ_i K(o, c, i) x(b, c, xy + i)| over examples, positions and the out-channels o that read c, for convolutions
    of one or several groups, and E|x_c| · E_o|W(o, c)| for linear layers. Layers of another kind are in `missed`.

    Columns: ``mean`` and ``deviation`` (standard) are those of the layer's input, after the activation;
    ``contribution`` is in the unit of its output, ``share`` its part of the sum over channels.

    Args:
        layers: paths of the weight layers to measure; None for all. Each layer costs as many numbers as its output
            has times its in-channels.
    """

    plot = Plot(
        "lines",
        _running_shares,
        x="part",
        y="running",
        each="layer",
        summary=None,
        x_ticks="percent",
        y_ticks="percent",
        laws=[Law("all equal", lambda part: part)],
        names="legend",
        title="Do few channels dominate?",
        x_label="in-channels, largest mean first",
        y_label="share of the output",
    )
    columns: ClassVar[tuple[str, ...]] = (*LAYER_COLUMNS, "channel", "mean", "deviation", "contribution", "share")

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        try:
            with torch.no_grad():
                sizes = contributions(module, x, y).double().cpu().numpy()
        except UnknownSummandsError as reason:
            self.missed.append(Unresolved(layer.path, str(reason)))
            return
        channels, total = by_channel(module, x), sizes.sum()
        moments = {"mean": channels.mean(1), "deviation": channels.std(1, correction=0)}
        columns = {name: moment.double().cpu().numpy() for name, moment in moments.items()}
        columns |= {"contribution": sizes, "share": sizes / total if total else np.full(len(sizes), np.nan)}
        self.add(layer, {"channel": np.arange(len(sizes)), **columns})


def contributions(module: nn.Module, x: Tensor, y: Tensor | None = None) -> Tensor:
    """Measure the mean magnitude of each in-channel's part of a layer's output: shape (C,).

    Args:
        module: a convolution that is not transposed, or a linear layer.
        x: its input, shape (B, C, *P), or (B, …, C) of a linear layer.
        y: its output, checked against the layer's attributes if it is given.

    Raises:
        UnknownSummandsError: the layer is of another kind, dropout precedes its weight, or its forward code does
            more than its attributes say.
    """
    if not isinstance(module, (nn.Linear, _ConvNd)) or isinstance(module, _ConvTransposeNd):
        raise UnknownSummandsError(f"a {type(module).__name__} has no in-channels whose parts add up")
    x = weight_input(module, x)
    weight = module.folded()[0] if isinstance(module, ScalarAffine) else module.weight
    if isinstance(module, nn.Linear):
        return by_channel(module, x).abs().mean(1) * weight.abs().mean(0)
    if x.dim() == weight.dim() - 1:
        x, y = x.unsqueeze(0), None if y is None else y.unsqueeze(0)
    x = padded(module, x)
    if y is not None:
        require_positions(module, x, y)
    return _of_convolution(module, x, weight)


def _of_convolution(module: _ConvNd, x: Tensor, weight: Tensor) -> Tensor:
    """Convolve each channel of a padded input alone, a few channels at a time."""
    convolve = (F.conv1d, F.conv2d, F.conv3d)[weight.dim() - 3]
    groups, outputs = module.groups, weight.shape[0] // module.groups
    # (C, O/groups, 1, *K): the kernels that read each channel of the layer.
    kernels = weight.reshape(groups, outputs, *weight.shape[1:]).transpose(1, 2).flatten(0, 1).unsqueeze(2)
    step = max(1, _CHUNK // (outputs * x[:, 0].numel()))
    sizes = []
    for channels, weights in zip(torch.split(x, step, 1), torch.split(kernels, step), strict=True):
        parts = convolve(channels, weights.flatten(0, 1), None, module.stride, 0, module.dilation, len(weights))
        sizes.append(parts.abs_().transpose(0, 1).reshape(len(weights), -1).mean(1))
    return torch.cat(sizes)


def dominance_table(channels: pd.DataFrame) -> pd.DataFrame:
    """Measure whether the channels with the largest means contribute the most, and how many channels matter.

    From rows of `ChannelContributions`, one row per layer and call: ``channels``; ``mean_correlation``, the rank
    correlation (Spearman) of contribution with |mean| over channels, NaN if either is constant;
    ``effective_channels``, 1/Σ share²; ``effective_share``, the same over the number of channels;
    ``top_tenth_share``, the share of the contributions from the tenth (at least one) of the channels with the largest
    |mean|.
    """
    return by_layer(channels, _dominance)


def _dominance(channels: pd.DataFrame) -> dict[str, Any]:
    means, shares = channels["mean"].abs().to_numpy(float), channels["share"].to_numpy(float)
    varies = len(np.unique(means)) > 1 and len(np.unique(shares)) > 1
    effective, tenth = 1 / float(np.square(shares).sum()), max(1, len(shares) // 10)
    return {
        "channels": len(shares),
        "mean_correlation": float(spearmanr(means, shares)[0]) if varies else np.nan,
        "effective_channels": effective,
        "effective_share": effective / len(shares),
        "top_tenth_share": float(shares[np.argsort(means)[-tenth:]].sum()),
    }
