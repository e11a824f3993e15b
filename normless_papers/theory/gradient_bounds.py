"""Gradient norms of block inputs and of parameter sets, and their lower bounds (Fixup, theorems 1 and 2).

With cross entropy l(z, y) = −yᵀ(z − logsumexp z), probabilities p = softmax(z) and entropy H(p) = −pᵀ log p, any z
has ⟨∂l/∂z, z⟩ = l − H(p). Where z is positively homogeneous of degree one in v, by Euler's identity also
⟨∂l/∂v, v⟩ = l − H(p), and by Cauchy–Schwarz ‖∂l/∂v‖ ≥ (l − H(p))/‖v‖.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import Setting, Watcher
from normless.residual import Layer, ResidualBlock
from normless_papers.probes import last_stem_layer
from normless_papers.theory.parameter_sets import ParameterSet, candidate_sets

INPUT_COLUMNS = (
    "block",
    "name",
    "example",
    "gradient_norm",
    "input_norm",
    "inner_product",
    "loss",
    "entropy",
    "bound",
)
_MEASURED = ("gradient_norm", "set_norm", "inner_product", "excess", "bound", "logit_bound")
SET_COLUMNS = ("set", "place", "block", "parameters", *_MEASURED)


@dataclass(frozen=True)
class OutputEntropy:
    """Numbers of every example, from a classifier's logits: tensors of shape (B,), float64.

    Attributes:
        loss: cross entropy, nats.
        entropy: H(p) of the probabilities, nats.
        largest: the largest logit.
        classes: number of logits per example.
    """

    loss: Tensor
    entropy: Tensor
    largest: Tensor
    classes: int


@dataclass
class InputGradientBounds(Watcher):
    """Norm of each example's gradient with respect to every block's input, and its bound (theorem 1, eq. 2).

    The input of the first block is the output of the stem's last layer, that of a later one the residual sum before
    it. The gradient must be that of the mean cross entropy, the default of `observe`; an example's own is B times as
    large.
    """

    rows: list[dict[str, Any]] = field(default_factory=list, init=False)

    def on_start(self, setting: Setting) -> None:
        """Number the blocks."""
        blocks = setting.map.blocks
        # The sum of one block is the input of the next; that of the last is the head's.
        names = [*(block.name for block in blocks), "head"]
        self._first = (1, names[0])
        self._places = {block.name: (index + 2, names[index + 1]) for index, block in enumerate(blocks)}
        self._stem = last_stem_layer(setting.map)
        # Copied, since a later layer may overwrite it.
        self._copies = any(layer.in_place for layer in setting.map.layers())
        self._targets = setting.targets
        self._values: dict[int, tuple[Tensor, Tensor]] = {}
        self._output: OutputEntropy | None = None
        self.rows = []

    def wants(self, layer: Layer) -> bool:
        """The stem's last layer."""
        return layer == self._stem

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """The first block's input."""
        self._keep(self._first[0], y)

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """The next block's input."""
        if block.name in self._places:
            self._keep(self._places[block.name][0], total)

    def on_logits(self, logits: Tensor) -> None:
        """Loss and entropy of every example."""
        self._output = output_entropy(logits, self._targets)

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """The gradient at the first block's input."""
        self._measure(*self._first, gradient)

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        """The gradient at the next block's input."""
        if block.name in self._places:
            self._measure(*self._places[block.name], gradient)

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """Remove the values of a block whose sum may have been another addition."""
        super().on_missed(block, reason)
        if block.name in self._places:
            index, _ = self._places[block.name]
            self._values.pop(index, None)
            self.rows = [row for row in self.rows if row["block"] != index]

    def table(self) -> pd.DataFrame:
        """A row per block input and example: norms, ⟨gradient, input⟩, l, H(p), bound (l − H(p))/‖x‖.

        `block` counts from 1; the last, L + 1, is the input of the head. Where the network from there on is
        positively homogeneous, `inner_product` = `loss` − `entropy` and `gradient_norm` ≥ `bound`.
        """
        table = pd.DataFrame(self.rows, columns=list(INPUT_COLUMNS))
        return table.sort_values(["block", "example"], ignore_index=True)

    def _keep(self, index: int, value: Tensor) -> None:
        self._values[index] = (value.clone() if self._copies else value, _norms(value))

    def _measure(self, index: int, name: str, gradient: Tensor) -> None:
        value, size = self._values.pop(index, (None, None))
        output = self._output
        if value is None or size is None or output is None or len(gradient) != len(output.loss):
            return
        batch = len(gradient)
        norms = batch * _norms(gradient)
        products = batch * _product(gradient, value)
        bounds = (output.loss - output.entropy) / size
        columns = (norms, size, products, output.loss, output.entropy, bounds)
        for example, values in enumerate(torch.stack(columns, 1).tolist()):
            self.rows.append(dict(zip(INPUT_COLUMNS, (index, name, example, *values), strict=True)))


@dataclass
class SetGradientBounds(Watcher):
    """Norm of the gradient with respect to sets of parameters, and its lower bounds (theorem 2, eq. 3 and 4).

    The gradient must be that of the mean cross entropy over the batch, the default of `observe`.

    Args:
        sets: the sets; if None, those of `candidate_sets` except single layers of a block.
    """

    sets: Iterable[ParameterSet] | None = None

    def on_start(self, setting: Setting) -> None:
        """Choose the sets."""
        chosen = candidate_sets(setting.map, single=False) if self.sets is None else self.sets
        self._sets = list(chosen)
        self._members = {name for one in self._sets for name in one.parameters}
        self._sizes = {
            name: float(parameter.detach().double().square().sum())
            for name, parameter in setting.model.named_parameters()
            if name in self._members
        }
        self._targets = setting.targets
        self._products: dict[str, tuple[float, float]] = {}
        self._output: OutputEntropy | None = None

    def on_logits(self, logits: Tensor) -> None:
        """Loss and entropy of every example."""
        self._output = output_entropy(logits, self._targets)

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        """The contribution of a parameter to ‖∂l/∂θ‖² and ⟨∂l/∂θ, θ⟩."""
        if name in self._members:
            wide = gradient.double()
            self._products[name] = (float(wide.square().sum()), float((wide * parameter.double()).sum()))

    def table(self) -> pd.DataFrame:
        """A row per set; where it is positively homogeneous, `inner_product` = `excess`, `gradient_norm` ≥ `bound`.

        `excess` is the mean of l − H(p) over the batch, `bound` is excess/‖θ_ph‖. `logit_bound` is
        (mean max_i z_i − log c)/‖θ_ph‖, a bound of the mean of `bound` over draws of the classifier's weights from a
        symmetric distribution, not of one draw.
        """
        rows: list[dict[str, Any]] = []
        output = self._output
        for one in self._sets if output is not None else []:
            assert output is not None
            squares, products = zip(*(self._products.get(name, (0.0, 0.0)) for name in one.parameters), strict=True)
            size = sum(self._sizes.get(name, 0.0) for name in one.parameters) ** 0.5
            excess = float((output.loss - output.entropy).mean())
            room = float(output.largest.mean()) - log(output.classes)
            norm = sum(squares) ** 0.5
            measured = (one.name, one.place, one.block, one.parameters, norm, size, sum(products), excess)
            bounds = (excess / size, room / size) if size else (float("nan"), float("nan"))
            rows.append(dict(zip(SET_COLUMNS, (*measured, *bounds), strict=True)))
        return pd.DataFrame(rows, columns=list(SET_COLUMNS))


def output_entropy(logits: Tensor, targets: Tensor) -> OutputEntropy:
    """Loss and entropy of logits (B, classes) at targets, classes (B,) or probabilities (B, classes)."""
    if logits.dim() != 2:
        raise ValueError(
            f"The bounds are about one vector of logits per example, shape (B, classes), and these have shape "
            f"{tuple(logits.shape)}. Measure a classifier."
        )
    wide = logits.double()
    labels = targets.double() if targets.is_floating_point() else targets
    loss = F.cross_entropy(wide, labels, reduction="none")
    entropy = torch.special.entr(wide.softmax(1)).sum(1)
    return OutputEntropy(loss, entropy, wide.amax(1), wide.shape[1])


def _norms(x: Tensor) -> Tensor:
    """The Euclidean norm of each example, shape (B,)."""
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1).double(), dim=1)
    return norms


def _product(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of each example, shape (B,)."""
    products: Tensor = (x.double() * y.double()).flatten(1).sum(1)
    return products
