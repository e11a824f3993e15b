"""Lower bounds on the gradient norms of block inputs, beside the measured norms (Fixup, theorem 1).

With cross entropy l(z, y) = −yᵀ(z − logsumexp z), probabilities p = softmax(z) and entropy H(p) = −pᵀ log p, any z
has ⟨∂l/∂z, z⟩ = l − H(p). Where z is positively homogeneous of degree one in something v, Euler's identity carries
this back, ⟨∂l/∂v, v⟩ = l − H(p), and Cauchy–Schwarz makes a lower bound of it, ‖∂l/∂v‖ ≥ (l − H(p))/‖v‖.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import Setting, Watcher, last_stem_layer, observe
from normless.residual import Layer, ResidualBlock, ResidualMap

COLUMNS = (
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


@dataclass(frozen=True)
class OutputEntropy:
    """What a classifier's logits say of every example: tensors of shape (B,), float64.

    Attributes:
        loss: cross entropy, nats.
        entropy: H(p) of the probabilities, nats.
        largest: the largest logit.
        classes: how many logits each example has.
    """

    loss: Tensor
    entropy: Tensor
    largest: Tensor
    classes: int


@dataclass
class InputGradientBounds(Watcher):
    """Norm of each example's gradient with respect to every block's input, and its bound (theorem 1, eq. 2).

    The input to the first block is what the stem's last layer gives, that to a later one the residual sum before it;
    with an activation behind that sum the identity is the same on either side of it. The gradient must be that of
    the mean cross entropy over the batch, as `observe` takes it by default; an example's own is B times as large.
    """

    rows: list[dict[str, Any]] = field(default_factory=list, init=False)

    def on_start(self, setting: Setting) -> None:
        """Note which places there are."""
        blocks = setting.map.blocks
        # The sum of one block is the input of the next; that of the last is the head's.
        names = [*(block.name for block in blocks), "head"]
        self._first = (1, names[0])
        self._places = {block.name: (index + 2, names[index + 1]) for index, block in enumerate(blocks)}
        self._stem = last_stem_layer(setting.map)
        # A total that a later layer overwrites must be copied.
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
        """Forget what may have been told of another addition."""
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
        table = pd.DataFrame(self.rows, columns=list(COLUMNS))
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
            self.rows.append(dict(zip(COLUMNS, (index, name, example, *values), strict=True)))


def input_bound_table(
    model: nn.Module, inputs: Any, targets: Tensor, residual_map: ResidualMap | None = None, *, training: bool = True
) -> pd.DataFrame:
    """What `InputGradientBounds` measures on one batch.

    Args:
        model: a network, inputs [B, …] to logits [B, classes].
        inputs: a batch, or a tuple or dictionary of arguments.
        targets: classes, shape (B,), or their probabilities, shape (B, classes).
        residual_map: the network's map, found where it is not given.
        training: the mode.
    """
    watcher = InputGradientBounds()
    observe(model, [watcher], inputs, targets, residual_map=residual_map, training=training)
    return watcher.table()


def output_entropy(logits: Tensor, targets: Tensor) -> OutputEntropy:
    """Loss and entropy of logits (B, classes) at targets, classes (B,) or probabilities (B, classes).

    Raises:
        ValueError: the logits are not one vector per example.
    """
    if logits.dim() != 2:
        raise ValueError(
            f"The bounds are about one vector of logits per example, shape (B, classes), and these have shape "
            f"{tuple(logits.shape)}. Measure a classifier."
        )
    wide = logits.double()
    kept = targets.double() if targets.is_floating_point() else targets
    loss = F.cross_entropy(wide, kept, reduction="none")
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
