"""Variance of branches and stream, measured and predicted from γ alone (Kim et al., equations 1 to 19)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.nn import ResidualSum
from normless.probes import PredictedRows, Setting, named_moments
from normless.residual import Layer, ResidualBlock, ResidualMap, Unresolved
from normless.signal import FUNCTIONS, BlockMoments

_PLACES = ("skip", "branch", "stream")
COLUMNS = (
    "block",
    "name",
    "equation",
    *(f"{place}_{moment}" for place in _PLACES for moment in ("second_moment", "variance")),
    "gamma_last",
    "gamma_down",
    *(f"predicted_{place}_second_moment" for place in _PLACES),
    "expected_stream_second_moment",
)


@dataclass
class StreamVariance(PredictedRows):
    """Variance and second moment on the skip path, at the branch end and at the block's output, predicted by γ.

    Moments are over examples, channels and positions. A block's output is that of the activation (ResNet-V1) or norm
    (post-norm) after its sum. The predictions assume β = 0, He's initialization and independent sides; γ² is the mean
    over channels; the Var of a ResNet-V1 in the paper is its second moment (Kim et al., section 2). By `equation`:

    - 6: the branch of a pre-activation block has γ_last², which the stream gains;
    - 11: the ReLU after the sum halves both ("half variance accumulation", ResNet-V1; low, since the paper ignores
      the mean of the non-negative stream);
    - 15: a projecting block of ResNet-V1 outputs (γ_down² + γ_last²) / 2 for any input;
    - 17: a projecting pre-activation block outputs γ_down² + γ_last².

    The first stage starts at γ_0² / 2 after the stem's norm and ReLU, pooling ignored (equation 19), or else at the
    measured value; a post-norm block outputs its norm's γ². `gamma_last` and `gamma_down` are roots of mean squares.
    `equation` and predictions are NaN for a branch without norm or with several weight layers after its last norm.
    `expected_stream_second_moment` is from `predicted_moments`, which uses all weights and the stream's mean.
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS

    def on_start(self, setting: Setting) -> None:
        """Find the last layer after every sum."""
        super().on_start(setting)
        if not setting.map.norms:
            self.missed.append(Unresolved("the network", "it has no normalization with a γ to predict its variance"))
        blocks = setting.map.blocks
        self._model, self._map = setting.model, setting.map
        self._last = {block.after_sum[-1]: block.name for block in blocks if block.after_sum}

    def wants(self, layer: Layer) -> bool:
        """The last layer after a sum."""
        return layer in self._last

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Measure a block's output after a module."""
        self.add(self._last[layer], named_moments("stream", y))

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Measure both sides of a sum, and the block's output if no module follows the sum."""
        if block.name not in self.rows:
            return
        sides = named_moments("skip", skip) | named_moments("branch", sum(branches[1:], branches[0]))
        self.add(block.name, sides)
        functional = [FUNCTIONS.get(_function(layer)) for layer in block.after_sum if ":" in layer.path]
        if not block.after_sum:
            self.add(block.name, named_moments("stream", total))
        elif len(functional) == len(block.after_sum) == 1 and functional[0] is not None:
            self.add(block.name, named_moments("stream", functional[0](total)))

    def add_predictions(self, table: pd.DataFrame, moments: Sequence[BlockMoments]) -> None:
        """Add the predictions from γ and from all weights."""
        if table.empty:
            return
        start = _after_stem(self._model, self._map)
        if start != start:
            start = float(table["skip_second_moment"].iloc[0])
        predicted = _predictions(self._model, self._map, start)
        for column in predicted:
            table[column] = predicted[column].to_numpy()
        table["expected_stream_second_moment"] = [one.behind for one in moments]


@torch.no_grad()
def _predictions(model: nn.Module, residual_map: ResidualMap, start: float) -> pd.DataFrame:
    """The predicted columns, from the second moment that the first block reads on."""
    rows, stream = [], start
    for block in residual_map.blocks:
        last = _branch(model, residual_map, block)
        down = _mean_square(model, residual_map, (*block.shared_layers, *block.skip_layers), "down")
        resets = bool(block.skip) and down == down
        skip = down if resets else stream if block.identity_skip else nan
        halves = any(_is_relu(model, layer) for layer in block.after_sum)
        after = _mean_square(model, residual_map, block.after_sum)
        total = _sum_factor(model, block) * (skip + last)
        stream = after if after == after else total / 2 if halves else total
        equation = nan if total != total else (15 if halves else 17) if resets else 11 if halves else 6
        rows.append((equation, last**0.5, down**0.5, skip, last, stream))
    columns = ["equation", "gamma_last", "gamma_down", *(f"predicted_{place}_second_moment" for place in _PLACES)]
    return pd.DataFrame(rows, columns=columns)


def _branch(model: nn.Module, residual_map: ResidualMap, block: ResidualBlock) -> float:
    """γ_last² of all branches times the factors after it; NaN for a branch without norm."""
    total = 0.0
    for layers in block.branches:
        value = _mean_square(model, residual_map, layers, "last")
        last = max(
            (index for index, layer in enumerate(layers) if layer.kind == "norm" and not layer.gating), default=0
        )
        after = [layer for layer in layers[last:] if not layer.gating]
        if sum(layer.kind == "weight" for layer in after) > 1:
            return nan
        for layer in after:
            if layer.kind == "scale" and layer.gamma is not None:
                value *= float(model.get_parameter(layer.gamma).double().square().mean())
        total += value
    module = None if block.sum is None else model.get_submodule(block.sum)
    return total * module.branch_factor**2 if isinstance(module, ResidualSum) else total


def _after_stem(model: nn.Module, residual_map: ResidualMap) -> float:
    """γ_0² / 2, or γ_0² if no ReLU follows the stem's last norm; NaN without a norm."""
    norms = [index for index, layer in enumerate(residual_map.stem_layers) if layer.kind == "norm"]
    if not norms or any(layer.kind == "weight" for layer in residual_map.stem_layers[norms[-1] :]):
        return nan
    after = residual_map.stem_layers[norms[-1] :]
    halved = any(_is_relu(model, layer) for layer in after)
    return _mean_square(model, residual_map, after) / (2 if halved else 1)


def _mean_square(
    model: nn.Module, residual_map: ResidualMap, layers: Iterable[Layer], role: str | None = None
) -> float:
    """The mean of γ² over the channels of the last norm among layers, optionally of one role; NaN without one."""
    norms = [layer for layer in layers if layer.kind == "norm" and role in (None, residual_map.norms[layer.path])]
    if not norms:
        return nan
    gamma = norms[-1].gamma
    return 1.0 if gamma is None else float(model.get_parameter(gamma).detach().double().square().mean())


def _is_relu(model: nn.Module, layer: Layer) -> bool:
    if layer.kind != "activation":
        return False
    function = FUNCTIONS.get(_function(layer)) if ":" in layer.path else model.get_submodule(layer.path)
    return function is F.relu or isinstance(function, nn.ReLU)


def _function(layer: Layer) -> str:
    """The operation of a layer in forward code: `relu` of `relu_1`."""
    return layer.description.rstrip("0123456789").rstrip("_")


def _sum_factor(model: nn.Module, block: ResidualBlock) -> float:
    module = None if block.sum is None else model.get_submodule(block.sum)
    return float(module.factor) ** 2 if isinstance(module, ResidualSum) else 1.0
