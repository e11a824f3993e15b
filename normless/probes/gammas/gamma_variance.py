"""What γ says about the variance of branches and stream, beside what is measured (Kim et al., equations 1 to 19)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.arguments import arguments_of
from normless.nn import ResidualSum
from normless.probes.forward.predicted import PredictedRows, measured_tables
from normless.probes.forward.signal import variance_and_second_moment
from normless.probes.hooks.watcher import Setting
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless.residual import residual_map as find_residual_map
from normless.signal import FUNCTIONS, BlockMoments

COLUMNS = (
    "block",
    "name",
    "equation",
    "skip_second_moment",
    "skip_variance",
    "branch_second_moment",
    "branch_variance",
    "stream_second_moment",
    "stream_variance",
    "gamma_last",
    "gamma_down",
    "predicted_skip_second_moment",
    "predicted_branch_second_moment",
    "predicted_stream_second_moment",
    "expected_stream_second_moment",
)


@dataclass
class StreamVariance(PredictedRows):
    """Second moment and variance on the skip path, at the branch end, and behind the block, for every block.

    They are over examples, channels and positions together. Behind the block means behind the activation that
    follows the sum, where one does (ResNet-V1), and behind a norm there (post-norm): what the next block reads.
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS

    def on_start(self, setting: Setting) -> None:
        """Begin a table, and note the last layer behind every sum."""
        super().on_start(setting)
        blocks = setting.map.blocks
        self._model, self._map = setting.model, setting.map
        self._last = {block.after_sum[-1]: block.name for block in blocks if block.after_sum}

    def wants(self, layer: Layer) -> bool:
        """The last layer behind a sum."""
        return layer in self._last

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """What a block gives, where a module makes it of the sum."""
        self._note(self._last[layer], "stream", y)

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Both sides of a sum, and what the block gives where no module is behind it."""
        if block.name not in self.rows:
            return
        self._note(block.name, "skip", skip)
        self._note(block.name, "branch", branches[0] if len(branches) == 1 else sum(branches[1:], branches[0]))
        functional = [FUNCTIONS.get(_function(layer)) for layer in block.after_sum if ":" in layer.path]
        if not block.after_sum:
            self._note(block.name, "stream", total)
        elif len(functional) == len(block.after_sum) == 1 and functional[0] is not None:
            self._note(block.name, "stream", functional[0](total))

    def _note(self, name: str, place: str, value: Tensor) -> None:
        variance, second = variance_and_second_moment(value)
        self.rows[name] |= {f"{place}_variance": variance, f"{place}_second_moment": second}

    def add_predictions(self, table: pd.DataFrame, moments: Sequence[BlockMoments]) -> None:
        """Fill in what γ predicts, and what all the weights do."""
        if table.empty:
            return
        start = _behind_stem(self._model, self._map)
        if start != start:
            start = float(table["skip_second_moment"].iloc[0])
        predicted = _predictions(self._model, self._map, start)
        for column in predicted:
            table[column] = predicted[column].to_numpy()
        table["expected_stream_second_moment"] = [one.behind for one in moments]


def gamma_variance_table(
    model: nn.Module, inputs: Any, residual_map: ResidualMap | None = None, *, training: bool = True
) -> pd.DataFrame:
    """Measured moments of branches and stream beside those that γ alone predicts (Kim et al., section 2).

    The predictions assume β = 0, weights from He's initialization and independent sides. γ² is the mean over
    channels, and what the paper calls Var of a ResNet-V1 is its second moment. With the equation of the paper:

    - 6: a pre-activation block's branch has γ_last², and the stream gains it;
    - 11: the ReLU behind the sum leaves half of both, half variance accumulation (ResNet-V1; that the stream is not
      negative and so has a mean is ignored, which makes the law low);
    - 15: behind a projecting block of ResNet-V1 there is (γ_down² + γ_last²) / 2, whatever came in;
    - 17: behind a projecting pre-activation block γ_down² + γ_last².

    The stem's norm and ReLU start the first stage with γ_0² / 2 (equation 19), what pooling does not counted; without
    them it starts where it was measured. A block behind whose sum there is a norm (post-norm) gives that norm's γ².

    Args:
        model: a network.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        residual_map: the network's map, found where it is not given.
        training: whether norms use the batch's statistics.

    Returns:
        One row per block in execution order; the columns are `COLUMNS`: `gamma_last` and `gamma_down` are roots of
        mean squares. `equation` is NaN, and so are predictions, where the norms of a block do not say it: where a
        branch has none, or more than one weight layer behind the last of them. `expected_stream_second_moment` is
        what `predicted_moments` makes of all the weights, with the mean of the stream counted.

    Raises:
        ValueError: the network has no residual block, or no normalization.
    """
    positional, named = arguments_of(inputs)
    found = find_residual_map(model, *positional, **named) if residual_map is None else residual_map
    if not found.blocks or not found.norms:
        lacks = "normalization" if found.blocks else "residual block"
        raise ValueError(f"γ of norms predicts the variance of residual blocks; this network has no {lacks}.")
    _, tables = measured_tables(model, {"stream": StreamVariance()}, inputs, residual_map=found, training=training)
    return tables["stream"]


@torch.no_grad()
def _predictions(model: nn.Module, found: ResidualMap, start: float) -> pd.DataFrame:
    """The predicted columns, from the second moment that the first block reads on."""
    rows, stream = [], start
    for block in found.blocks:
        last = _branch(model, found, block)
        down = _mean_square(model, found, (*block.shared_layers, *block.skip_layers), "down")
        resets = bool(block.skip) and down == down
        skip = down if resets else stream if block.identity_skip else nan
        halves = any(_is_relu(model, layer) for layer in block.after_sum)
        after = _mean_square(model, found, block.after_sum)
        total = _sum_factor(model, block) * (skip + last)
        stream = after if after == after else total / 2 if halves else total
        equation = nan if total != total else (15 if halves else 17) if resets else 11 if halves else 6
        rows.append((equation, last**0.5, down**0.5, skip, last, stream))
    names = ("skip", "branch", "stream")
    columns = ["equation", "gamma_last", "gamma_down", *(f"predicted_{name}_second_moment" for name in names)]
    return pd.DataFrame(rows, columns=columns)


def _branch(model: nn.Module, found: ResidualMap, block: ResidualBlock) -> float:
    """γ_last² of all branches with the factors behind it; NaN for a branch without a norm."""
    total = 0.0
    for layers in block.branches:
        value = _mean_square(model, found, layers, "last")
        last = max(
            (index for index, layer in enumerate(layers) if layer.kind == "norm" and not layer.gating), default=0
        )
        behind = [layer for layer in layers[last:] if not layer.gating]
        if sum(layer.kind == "weight" for layer in behind) > 1:
            return nan
        for layer in behind:
            if layer.kind == "scale" and layer.gamma is not None:
                value *= float(model.get_parameter(layer.gamma).double().square().mean())
        total += value
    module = None if block.sum is None else model.get_submodule(block.sum)
    return total * module.branch_factor**2 if isinstance(module, ResidualSum) else total


def _behind_stem(model: nn.Module, found: ResidualMap) -> float:
    """γ_0² / 2, or γ_0² where no ReLU follows the stem's last norm; NaN without one."""
    norms = [index for index, layer in enumerate(found.stem_layers) if layer.kind == "norm"]
    if not norms or any(layer.kind == "weight" for layer in found.stem_layers[norms[-1] :]):
        return nan
    behind = found.stem_layers[norms[-1] :]
    halved = any(_is_relu(model, layer) for layer in behind)
    return _mean_square(model, found, behind) / (2 if halved else 1)


def _mean_square(model: nn.Module, found: ResidualMap, layers: Iterable[Layer], role: str | None = None) -> float:
    """The mean of γ² over the channels of the last norm among layers, of a role where one is asked; NaN without."""
    norms = [layer for layer in layers if layer.kind == "norm" and role in (None, found.norms[layer.path])]
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
    """The operation of a layer that is forward code, as `relu` of `relu_1`."""
    return layer.description.rstrip("0123456789").rstrip("_")


def _sum_factor(model: nn.Module, block: ResidualBlock) -> float:
    module = None if block.sum is None else model.get_submodule(block.sum)
    return float(module.factor) ** 2 if isinstance(module, ResidualSum) else 1.0
