"""Moments of the residual stream: by γ (Kim et al.), and over examples (De & Smith, appendix C)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan, nan, sqrt
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.nn import ResidualSum
from normless.probes import PredictedRows, Setting, named_moments
from normless.residual import Layer, ResidualBlock, ResidualMap, Unresolved
from normless.signal import BlockMoments

# Elementwise functions of forward code, by operation.
_NAMES = "relu relu6 gelu silu selu mish tanh sigmoid hardswish hardsigmoid softsign"
_FUNCTIONS = {name: getattr(F, name) for name in _NAMES.split()}
_PLACES = ("skip", "branch", "stream")
_MEASURED = tuple(f"{place}_{moment}" for place in _PLACES for moment in ("second_moment", "variance"))
_PREDICTED = ("gamma_last", "gamma_down", *(f"predicted_{place}_second_moment" for place in _PLACES))
_EXPECTED = "expected_stream_second_moment"
_BY_CHANNEL = "stream_channel_variance"


@dataclass
class StreamVariance(PredictedRows):
    """Variance and second moment on the skip path, at the branch end and at the block's output, predicted by γ.

    Moments are over examples, channels and positions; `stream_channel_variance` is the variance of each channel over
    examples and positions, Var[x_l,i] of the equations, averaged over channels. A block's output is that of the
    activation (ResNet-V1) or norm (post-norm) after its sum. The predictions assume β = 0, He's initialization and
    independent sides; γ² is the mean over channels; the Var of a ResNet-V1 in the paper is its second moment (Kim et
    al., section 2). By `equation`:

    - 6: the branch of a pre-activation block has γ_last², which the stream gains;
    - 11: the ReLU after the sum halves both ("half variance accumulation", ResNet-V1; too low, since the paper
      neglects the mean of the non-negative stream);
    - 15: a projecting block of ResNet-V1 outputs (γ_down² + γ_last²) / 2 for any input;
    - 17: a projecting pre-activation block outputs γ_down² + γ_last².

    The first stage starts at γ_0² / 2 after the stem's norm and ReLU, neglecting pooling (equation 19), or else at
    the measured value; a post-norm block outputs its norm's γ². `gamma_last` and `gamma_down` are roots of mean
    squares. `equation` and predictions are NaN for a branch without a norm or with several weight layers after its
    last norm. `expected_stream_second_moment` is from `predicted_moments`, which uses all weights and the stream's
    mean.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "block",
        "name",
        "equation",
        *_MEASURED,
        _BY_CHANNEL,
        *_PREDICTED,
        _EXPECTED,
    )

    def on_start(self, setting: Setting) -> None:
        super().on_start(setting)
        if not setting.map.norms:
            self.missed.append(Unresolved("the network", "it has no normalization with a γ to predict its variance"))
        self._model, self._map = setting.model, setting.map
        self._last = {block.after_sum[-1]: block.name for block in setting.map.blocks if block.after_sum}

    def wants(self, layer: Layer) -> bool:
        return layer in self._last

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        self.add(self._last[layer], _stream(y))

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        if block.name not in self.rows:
            return
        self.add(block.name, named_moments("skip", skip) | named_moments("branch", sum(branches[1:], branches[0])))
        after = block.after_sum
        function = _FUNCTIONS.get(_operation(after[0])) if len(after) == 1 and ":" in after[0].path else None
        if not after or function is not None:
            self.add(block.name, _stream(total if function is None else function(total)))

    def add_predictions(self, table: pd.DataFrame, moments: Sequence[BlockMoments]) -> None:
        """Add the predictions from γ and from all weights."""
        if table.empty:
            return
        start = _after_stem(self._model, self._map)
        predicted = _predictions(
            self._model, self._map, table["skip_second_moment"].iloc[0] if isnan(start) else start
        )
        table[predicted.columns] = predicted
        table[_EXPECTED] = [block.after for block in moments]


def _stream(x: Tensor) -> dict[str, Tensor]:
    """Return the moments of a block's output, and the mean over channels (second of images, else last) of theirs."""
    channel = 1 if x.dim() == 4 else x.dim() - 1
    others = [dim for dim in range(x.dim()) if dim != channel]
    return named_moments("stream", x) | {_BY_CHANNEL: x.detach().var(others, correction=0).double().mean()}


@torch.no_grad()
def _predictions(model: nn.Module, residual_map: ResidualMap, start: float) -> pd.DataFrame:
    """Predict the columns, given the second moment of the first block's input."""
    rows, stream = [], start
    for block in residual_map.blocks:
        module = model.get_submodule(block.sum) if block.sum is not None else None
        factors = (module.branch_factor, module.factor) if isinstance(module, ResidualSum) else (1.0, 1.0)
        last = _branch(model, residual_map, block) * factors[0] ** 2
        down = _mean_square(model, residual_map, (*block.shared_layers, *block.skip_layers), "down")
        resets = bool(block.skip) and not isnan(down)
        skip = down if resets else stream if block.identity_skip else nan
        halves = any(_is_relu(model, layer) for layer in block.after_sum)
        after = _mean_square(model, residual_map, block.after_sum)
        total = float(factors[1]) ** 2 * (skip + last)
        stream = (total / 2 if halves else total) if isnan(after) else after
        equation = nan if isnan(total) else (15 if halves else 17) if resets else 11 if halves else 6
        rows.append((equation, last**0.5, down**0.5, skip, last, stream))
    return pd.DataFrame(rows, columns=["equation", *_PREDICTED])


def _branch(model: nn.Module, residual_map: ResidualMap, block: ResidualBlock) -> float:
    """Return γ_last² times the multipliers after it, summed over branches; NaN for a branch without a norm."""
    total = 0.0
    for layers in block.branches:
        value = _mean_square(model, residual_map, layers, "last")
        path = [layer for layer in layers if not layer.gating]
        after = path[max((index for index, layer in enumerate(path) if layer.kind == "norm"), default=0) :]
        if sum(layer.kind == "weight" for layer in after) > 1:
            return nan
        for layer in after:
            if layer.kind == "scale" and layer.gamma is not None:
                value *= _square(model, layer.gamma)
        total += value
    return total


def _after_stem(model: nn.Module, residual_map: ResidualMap) -> float:
    """Return γ_0² / 2, or γ_0² if no ReLU follows the stem's last norm; NaN without a norm."""
    norms = [index for index, layer in enumerate(residual_map.stem_layers) if layer.kind == "norm"]
    after = residual_map.stem_layers[norms[-1] :] if norms else ()
    if any(layer.kind == "weight" for layer in after):
        return nan
    return _mean_square(model, residual_map, after) / (2 if any(_is_relu(model, layer) for layer in after) else 1)


def _mean_square(
    model: nn.Module, residual_map: ResidualMap, layers: Iterable[Layer], role: str | None = None
) -> float:
    """Return the mean of γ² over the channels of the last norm among layers, of any or one role; NaN without one."""
    norms = [layer for layer in layers if layer.kind == "norm" and role in (None, residual_map.norms[layer.path])]
    if not norms:
        return nan
    return 1.0 if norms[-1].gamma is None else _square(model, norms[-1].gamma)


def _square(model: nn.Module, gamma: str) -> float:
    return float(model.get_parameter(gamma).detach().double().square().mean())


def _is_relu(model: nn.Module, layer: Layer) -> bool:
    if layer.kind != "activation":
        return False
    function = _FUNCTIONS.get(_operation(layer)) if ":" in layer.path else model.get_submodule(layer.path)
    return function is F.relu or isinstance(function, nn.ReLU)


def _operation(layer: Layer) -> str:
    """Return the operation of a layer in forward code: `relu` of `relu_1`."""
    return layer.description.rstrip("0123456789").rstrip("_")


SIDES = ("skip", "branch", "sum")
MEASURES = ("variance", "covariance", "correlation")


@dataclass
class ExampleCovariance(PredictedRows):
    """Variance of an example and covariance of two on the skip path, at the branch end and after every sum.

    Both are taken over channels and positions in place of draws of the weights (De & Smith, appendix C, equation 1):
    for examples j ≠ k of a batch,

        variance    mean over j of     mean(x_j²) - mean(x_j)²
        covariance  mean over j ≠ k of mean(x_j x_k) - mean(x_j) mean(x_k)

    and correlation = covariance / variance, 1/π at every depth of a normalized ReLU network: with one ReLU and one
    linear layer a block, block l has variance l and covariance l/π. `skip_branch_covariance` is that of an example's
    skip path and branch, zero in theory, and `skip_branch_correlation` its ratio to both standard deviations. The
    `predicted_…` columns come from `predicted_moments`; unknown values are NaN.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "block",
        "name",
        *(f"{side}_{measure}" for side in SIDES for measure in MEASURES),
        "skip_branch_covariance",
        "skip_branch_correlation",
        *(f"predicted_{side}_{measure}" for side in SIDES for measure in MEASURES),
    )

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        row: dict[str, float] = {}
        branch = sum(branches[1:], branches[0])
        for side, value in zip(SIDES, (skip, branch, total), strict=True):
            variance, covariance = covariance_of_examples(value)
            correlation = covariance / variance if variance > 0 else nan
            row |= {
                f"{side}_variance": variance,
                f"{side}_covariance": covariance,
                f"{side}_correlation": correlation,
            }
        if skip.shape == branch.shape:
            x, f = skip.flatten(1).double(), branch.flatten(1).double()
            covariance = float(((x * f).mean(1) - x.mean(1) * f.mean(1)).mean())
            scale = row["skip_variance"] * row["branch_variance"]
            row["skip_branch_covariance"] = covariance
            row["skip_branch_correlation"] = covariance / sqrt(scale) if scale > 0 else nan
        self.add(block.name, row)

    def add_predictions(self, table: pd.DataFrame, moments: Sequence[BlockMoments]) -> None:
        """Add predicted variances, covariances and correlations."""
        for side, name in (("skip", "skip"), ("branch", "branch"), ("sum", "total")):
            for measure in ("variance", "covariance"):
                numbers = [getattr(block, f"{name}_{measure}") for block in moments]
                table[f"predicted_{side}_{measure}"] = pd.Series(numbers, dtype=float)
            variance = table[f"predicted_{side}_variance"]
            correlation = table[f"predicted_{side}_covariance"] / variance
            table[f"predicted_{side}_correlation"] = correlation.where(variance > 0)


def covariance_of_examples(x: Tensor) -> tuple[float, float]:
    """Return the variance of an example and the covariance of two, averaged over examples and pairs.

    Args:
        x: activations, shape (B, …); the covariance is NaN for B = 1.
    """
    wide = (x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)).double()
    means, squares = wide.mean(1), torch.linalg.vector_norm(wide, dim=1).square() / wide.shape[1]
    variance = float((squares - means.square()).mean())
    count = len(wide)
    if count < 2:
        return variance, nan
    # The sum over pairs is the sum of all products less the squares.
    products = wide.sum(0).square().mean() - squares.sum()
    of_means = means.sum().square() - means.square().sum()
    return variance, float(products - of_means) / (count * (count - 1))
