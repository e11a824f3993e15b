"""The correlation of examples' gradients: shattered gradients (Balduzzi et al. 2017; ZeroInit, section 4).

In a wide residual network of ReLUs at initialization with branches that keep the variance and a multiplier α, the
cosine ρ between the activations of two examples and the cosine c between their gradients change in a block as

    ρ' = (ρ + α² κ₁(κ₁(…ρ)))/(1 + α²),    c = c' · (1 + α² Π_i κ₀(ρ_i))/(1 + α²),
    κ₀(ρ) = 1 − arccos(ρ)/π,              κ₁(ρ) = (√(1 − ρ²) + ρ(π − arccos ρ))/π,

with the cosine ρ_i before the i-th of the branch's ReLUs: nothing is lost at α = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import acos, pi, sqrt
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import Loss, Setting, Watcher, observe
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless_papers.probes.network_function import as_function, gradients_of, map_of, trainable_parameters
from normless_papers.probes.owners import NO_OWNER, last_stem_layer, parameter_owners

ALL = "all"


@dataclass
class GradientCorrelation(Watcher):
    """Cosine between the gradients of different examples with respect to the activations at every residual sum.

    `block` 0 is the output of the stem's last layer. The gradient is that of the pass's loss.
    """

    rows: list[dict[str, Any]] = field(default_factory=list, init=False)

    def on_start(self, setting: Setting) -> None:
        self._blocks = {block.name: index for index, block in enumerate(setting.map.blocks, 1)}
        self._stem = last_stem_layer(setting.map)
        self.rows = []

    def wants(self, layer: Layer) -> bool:
        return layer == self._stem

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        self.rows.append({"block": 0, "name": layer.path, **_cosines(_gram(gradient))})

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        if block.name in self._blocks:
            self.rows.append({"block": self._blocks[block.name], "name": block.name, **_cosines(_gram(gradient))})

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """Remove the rows of a block whose sum may have been another addition."""
        super().on_missed(block, reason)
        self.rows = [row for row in self.rows if row["name"] != block.name]

    def table(self) -> pd.DataFrame:
        """Return by place the mean cosine and mean |cosine| over pairs of examples, and the number of pairs.

        Examples with a zero gradient are excluded.
        """
        columns = ["block", "name", "cosine", "absolute_cosine", "pairs"]
        return pd.DataFrame(self.rows, columns=columns).sort_values("block", ignore_index=True)


def gradient_correlation_table(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    residual_map: ResidualMap | None = None,
    *,
    loss: Loss = F.cross_entropy,
    training: bool = True,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure `GradientCorrelation` of the loss or, without targets, of a random direction of the logits.

    That direction (normal, drawn from `seed`) is the same for all examples, so their classes do not matter. The other
    arguments are those of `normless.probes.observe`.
    """
    watcher = GradientCorrelation()
    targets, loss = (targets, loss) if targets is not None else (seed, _along_one_direction)
    observe(model, [watcher], inputs, targets, loss=loss, residual_map=residual_map, training=training)
    return watcher.table()


def parameter_gradient_correlation(
    model: nn.Module,
    inputs: Any,
    targets: Sequence[Any] | Tensor,
    residual_map: ResidualMap | None = None,
    *,
    loss: Loss = F.cross_entropy,
    training: bool = True,
) -> pd.DataFrame:
    """Cosine between the gradients of different examples with respect to every parameter, and to all of them.

    One forward pass, and one backward pass and one copy of the gradients per example. The network is left as it was.
    Arguments are those of `normless.probes.observe`, with examples along the logits' first axis; `loss` takes logits
    and targets of one example, both with a first axis of length 1.

    Returns:
        A row per trainable parameter in the order of `named_parameters` with its `ParameterOwner`, and a last row
        `all`: mean cosine and mean |cosine| over pairs of examples with a gradient, and how many these are.
    """
    owners = parameter_owners(map_of(model, inputs, residual_map))
    parameters = trainable_parameters(model)
    with torch.enable_grad(), as_function(model, training=training) as logits:
        z = logits(parameters, inputs)
        losses = [loss(z[one : one + 1], targets[one : one + 1]) for one in range(len(z))]
        grams = {name: _gram(rows) for name, rows in gradients_of(losses, parameters).items()}
    grams[ALL] = torch.stack(list(grams.values())).sum(0)
    return pd.DataFrame(
        {"parameter": name, **vars(owners.get(name, NO_OWNER)), **_cosines(gram)} for name, gram in grams.items()
    )


def predicted_gradient_cosines(
    depth: int, *, start: float = 0.0, relus: int = 1, multiplier: float = 1.0
) -> list[float]:
    """The cosine between two examples' gradients after the stem and after each block, by the equations above.

    The gradient is that of one direction of the logits, linear in the last sum.

    Args:
        depth: number of blocks L.
        start: the cosine of the two examples' activations before the first block.
        relus: number of pairs of ReLU and weight layer (He, fan-in) in a branch.
        multiplier: α, on the branch.

    Returns:
        L + 1 values; the last is 1.
    """
    activations, gain = start, multiplier**2
    factors: list[float] = []
    for _ in range(depth):
        branch, both_pass = activations, 1.0
        for _ in range(relus):
            angle = acos(min(max(branch, -1.0), 1.0))
            both_pass *= 1 - angle / pi
            branch = (sqrt(max(1 - branch**2, 0.0)) + branch * (pi - angle)) / pi
        factors.append((1 + gain * both_pass) / (1 + gain))
        activations = (activations + gain * branch) / (1 + gain)
    cosines = [1.0]
    for factor in reversed(factors):
        cosines.append(cosines[-1] * factor)
    return cosines[::-1]


def _along_one_direction(logits: Tensor, seed: int) -> Tensor:
    """Return the logits' mean component along a random direction."""
    flat = logits.flatten(1)
    direction = torch.randn(flat.shape[1], generator=torch.Generator().manual_seed(seed))
    return (flat @ direction.to(flat)).mean()


def _gram(gradients: Tensor) -> Tensor:
    """Return inner products between the gradients of all examples, shape (B, B), float64."""
    rows = gradients.detach().flatten(1).double()
    return rows @ rows.T


def _cosines(gram: Tensor) -> dict[str, float]:
    """Average the cosine over pairs of examples with a non-zero gradient; NaN without a pair."""
    norms = gram.diagonal().sqrt()
    nonzero = (norms > 0).nonzero().flatten()
    cosines = gram[nonzero][:, nonzero] / torch.outer(norms[nonzero], norms[nonzero])
    pairs = cosines[torch.ones_like(cosines, dtype=torch.bool).triu(1)]
    return {"cosine": float(pairs.mean()), "absolute_cosine": float(pairs.abs().mean()), "pairs": len(pairs)}
