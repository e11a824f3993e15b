"""Correlation of examples' gradients, and the norms and angles of weights in training.

Norms of weights, their angle to the gradient, and multipliers during training (Fixup, section 3).

A gradient g orthogonal to its weight lengthens the weight at every step, ∆‖W‖² = η²‖g‖² − 2ηλ‖W‖² to first order in
λ. The terms balance at ‖W‖² = η‖g‖²/(2λ), so the norm shrinks after the rate drops. The product ⟨∂l/∂W, W⟩ is the
same for every layer of a branch without biases and equals α ∂l/∂α of its multiplier.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import nan
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless.probes import Setting, Watcher, observe
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless_papers.probes.network_function import (
    NO_OWNER,
    ParameterOwner,
    last_stem_layer,
    parameter_owners,
)

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


def gradient_correlation_table(model: nn.Module, inputs: Any, *, seed: int = 0) -> pd.DataFrame:
    """Measure `GradientCorrelation` of a random direction of the logits, normal and drawn from `seed`.

    It is the same for all examples, so their classes do not matter.
    """
    watcher = GradientCorrelation()
    observe(model, [watcher], inputs, seed, loss=_along_one_direction)
    return watcher.table()


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


_OWNER = tuple(field.name for field in fields(ParameterOwner))
_NORMS = ("weight_norm", "gradient_norm", "inner_product", "cosine", "multiplier", "gamma_last")
COLUMNS = ("parameter", *_OWNER, *_NORMS)


@dataclass
class WeightDynamics(Watcher):
    """Norm of every weight, norm of its gradient, the angle between them, and the multiplier at its branch's end.

    A row per weight of a layer, with its `ParameterOwner`. `weight_norm` and `gradient_norm` are Euclidean;
    `inner_product` is ⟨∂l/∂W, W⟩; `cosine` is that of the angle, NaN without a gradient. For weights on a branch
    `multiplier` is |α| at its end and `gamma_last` the γ of its last norm, the root mean square if there are several
    values, NaN if there are none.
    """

    rows: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    @torch.no_grad()
    def on_start(self, setting: Setting) -> None:
        named = dict(setting.model.named_parameters(remove_duplicate=False))
        owners = parameter_owners(setting.map)
        blocks = {
            block.name: {
                "multiplier": _root_mean_square(_multipliers(block, named)),
                "gamma_last": _root_mean_square(_last_gammas(block, setting.map, named)),
            }
            for block in setting.map.blocks
        }
        self.rows = {
            name: {"parameter": name, **vars(owner), "weight_norm": float(parameter.double().norm())}
            | (blocks[owner.name] if owner.place == "branch" else {})
            for name, parameter in setting.model.named_parameters()
            if (owner := owners.get(name, NO_OWNER)).position and parameter.dim() > 1
        }

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        if name in self.rows:
            self.rows[name] |= _norm_and_angle(parameter.double(), gradient.double())

    def table(self) -> pd.DataFrame:
        return pd.DataFrame(list(self.rows.values()), columns=list(COLUMNS))


def _last_gammas(block: ResidualBlock, structure: ResidualMap, named: dict[str, nn.Parameter]) -> list[Tensor]:
    last = [layer for layer in block.layers if layer.kind == "norm" and structure.norms[layer.path] == "last"]
    return [named[layer.gamma] for layer in last if layer.gamma is not None]


def _multipliers(block: ResidualBlock, named: dict[str, nn.Parameter]) -> list[Tensor]:
    """Return the multipliers at the ends of a block's branches, of their last weight layers or of the sum."""
    places = [*(layer.path for layer in block.branch_layers), block.sum]
    return [named[f"{place}.multiplier"] for place in places if f"{place}.multiplier" in named]


def _root_mean_square(values: list[Tensor]) -> float:
    return float(torch.cat([value.flatten().double() for value in values]).square().mean().sqrt()) if values else nan


def _norm_and_angle(weight: Tensor, gradient: Tensor) -> dict[str, float]:
    length, product = float(gradient.norm()), float((gradient * weight).sum())
    lengths = length * float(weight.norm())
    return {"gradient_norm": length, "inner_product": product, "cosine": product / lengths if lengths else nan}
