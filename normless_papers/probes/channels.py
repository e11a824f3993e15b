"""Channels of weight layers: contributions to outputs, gradients, and the gradients between pairs.

The contribution of every in-channel to a layer's output, and the number of channels that matter.

In an unnormalized network some channels have much larger means than others and dominate the neurons of the next layer
("Understanding batch normalization", appendix K).

The gradient between every in-channel and every out-channel of a layer, and how close to rank one it is.

In an unnormalized network the matrix M(o, c) = Σ_i |∂L/∂K(o, c, i)| over kernel offsets i is close to rank one:
some channels have large gradients to all others, some have small ones ("Understanding batch normalization", section
3.5 and figure 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from normless.nn import ScalarAffine
from normless.probes import LayerPosition, Setting, by_channel, layer_table
from normless.residual import Layer, Unresolved
from normless_lab.plots import Law, Plot
from normless_papers.probes.network_function import require_known
from normless_papers.probes.summand_tables import LAYER_COLUMNS, LayerTables, by_layer
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


@dataclass
class ChannelGradients(LayerTables):
    """Gradient of a bias on every output channel of every weight layer: Σ_bxy ∂L/∂y(b, c, x, y), a row per channel.

    Without normalization the channels of the lower layers are scaled very differently, since a product of many
    random matrices is badly conditioned (Bjorck et al., appendix I.2, figure 19). If only a norm reads the layer's
    output, y is the norm's output and the bias its β, since a bias before a norm that subtracts the mean has no
    gradient.

    Columns: ``measured_at`` is the path of the layer or norm with output y; ``gradient`` Σ_bxy ∂L/∂y, in nats per
    unit of y; ``mean_abs`` the mean of |∂L/∂y| over examples and positions.
    """

    columns: ClassVar[tuple[str, ...]] = (*LAYER_COLUMNS, "measured_at", "channel", "gradient", "mean_abs")

    _weights: dict[Layer, Layer] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        super().on_start(setting)
        self._weights = {}
        for layer in self._places:
            readers = setting.map.readers.get(layer.path, [])
            norms = [reader for reader in readers if reader.kind == "norm" and reader.call == layer.call]
            alone = len(readers) == 1 and norms and ":" not in norms[0].path and norms[0].called
            self._weights[norms[0] if alone else layer] = layer

    def wants(self, layer: Layer) -> bool:
        return layer in self._weights

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        channels = by_channel(module, gradient)
        numbers = {"gradient": channels.sum(1), "mean_abs": channels.abs().mean(1)}
        columns = {"measured_at": layer.path, "channel": np.arange(len(channels))}
        columns |= {name: number.double().cpu().numpy() for name, number in numbers.items()}
        self.add(self._weights[layer], columns)


def channel_gradient_spread(channels: pd.DataFrame) -> pd.DataFrame:
    """Measure the spread of |gradient| over the channels of each layer.

    From rows of `ChannelGradients`, one row per layer in execution order: ``channels``; ``mean`` and
    ``standard_deviation`` of |gradient| over channels; ``variation``, their ratio; ``decades``, the standard
    deviation of log₁₀|gradient| over channels with a gradient; and ``predicted_variation`` = √(π/2 - 1) ≈ 0.756,
    the variation of normal gradients of equal variance.
    """
    return by_layer(channels, _spread)


def _spread(channels: pd.DataFrame) -> dict[str, float]:
    sizes = channels["gradient"].abs().to_numpy(float)
    mean, deviation = float(sizes.mean()), float(sizes.std())
    logarithms = np.log10(sizes[sizes > 0])
    return {
        "channels": len(sizes),
        "mean": mean,
        "standard_deviation": deviation,
        "variation": deviation / mean if mean else np.nan,
        "decades": float(logarithms.std()) if len(logarithms) else np.nan,
        "predicted_variation": float(np.sqrt(np.pi / 2 - 1)),
    }


_PLACE = ("order", "layer", "block", "weight")
_RANKS = ("variation", "effective_rank", "rank_one_share", "predicted_rank_one_share")


@dataclass
class ChannelPairs(LayerTables):
    """The matrices M(o, c) of weight layers, from the gradients of their weights: a row per weight and channel pair.

    Weights outside modules count too, such as an attention's projections. The gradient of a layer that runs several
    times is the sum over calls; it is 0 on a branch with a zero multiplier.

    Columns: ``gradient`` is M(o, c), in nats per unit of the weight; in-channels are counted within their group.

    Args:
        layers: paths of the weight layers to measure; None for all.
    """

    columns = (*_PLACE, "out_channel", "in_channel", "gradient")

    _weights: dict[str, LayerPosition] = field(default_factory=dict, init=False, repr=False)
    _matrices: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        super().on_start(setting)
        self._weights, self._matrices = {}, {}
        for layer, place in self._places.items():
            self._weights |= {name: place for name in layer.parameters if name not in self._weights}

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        if name in self._weights and gradient.dim() > 1:
            pairs = gradient.abs().double()
            self._matrices[name] = (pairs.flatten(2).sum(2) if pairs.dim() > 2 else pairs).cpu().numpy()

    def matrix(self, weight: str) -> npt.NDArray[np.float64]:
        """Return M of a weight by its qualified name, shape (out-channels, in-channels of a group).

        Raises:
            ValueError: no weight of that name has a gradient.
        """
        require_known([weight], self._matrices, "gradient of a weight")
        return self._matrices[weight]

    def table(self) -> pd.DataFrame:
        """Return every entry of every matrix, weights in execution order."""
        tables = []
        for columns, matrix in self._in_order():
            out_channel, in_channel = np.indices(matrix.shape).reshape(2, -1)
            pairs = {"out_channel": out_channel, "in_channel": in_channel, "gradient": matrix.ravel()}
            tables.append(pd.DataFrame(columns | pairs))
        return layer_table(tables, self.columns)

    def structure(self) -> pd.DataFrame:
        """Return by weight in execution order ``out_channels``, ``in_channels`` and the structure of its matrix.

        ``mean`` of M's entries; ``variation``, their standard deviation over the mean; ``effective_rank`` and
        ``rank_one_share``, of the functions of these names; and ``predicted_rank_one_share`` for independent entries.
        """
        rows: list[dict[str, Any]] = []
        for columns, matrix in self._in_order():
            outputs, inputs = matrix.shape
            mean = float(matrix.mean())
            by_chance = (outputs + inputs - 2) / max(outputs * inputs - 1, 1)
            ranks = (float(matrix.std()) / mean if mean else np.nan, effective_rank(matrix), rank_one_share(matrix))
            sizes = {"out_channels": outputs, "in_channels": inputs, "mean": mean}
            rows.append(columns | sizes | dict(zip(_RANKS, (*ranks, by_chance), strict=True)))
        return layer_table(rows, (*_PLACE, "out_channels", "in_channels", "mean", *_RANKS))

    def _in_order(self) -> list[tuple[dict[str, Any], npt.NDArray[np.float64]]]:
        """Return the first columns and the matrix of every weight."""
        measured = [name for name in self._weights if name in self._matrices]
        return [(self._weights[name].columns() | {"weight": name}, self._matrices[name]) for name in measured]


def effective_rank(matrix: npt.NDArray[np.float64]) -> float:
    """Return exp H(p) for the entropy H of the normalized singular values p = s/Σs (Roy & Vetterli 2007)."""
    values = np.linalg.svd(matrix, compute_uv=False)
    shares = values[values > 0] / max(values.sum(), np.finfo(float).tiny)
    return float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else float("nan")


def rank_one_share(matrix: npt.NDArray[np.float64]) -> float:
    """Return the share of a matrix's variation that a factor per row times a factor per column explains.

    1 - Σ_{k>1} s_k² / Σ (M - mean)², with singular values s: 1 for a matrix of rank one. For m × n independent
    entries with a small spread it is (m + n - 2)/(mn - 1), the share explained by chance. NaN for a constant matrix.
    """
    # Smaller differences are rounding errors of float32, the usual type of gradients.
    if np.ptp(matrix) <= 1e-6 * np.abs(matrix).max():
        return float("nan")
    varying = float(np.square(matrix - matrix.mean()).sum())
    values = np.linalg.svd(matrix, compute_uv=False)
    return 1 - float(np.square(values[1:]).sum()) / varying
