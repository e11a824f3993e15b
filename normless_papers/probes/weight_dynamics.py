"""Norms of weights, their angle to the gradient, and multipliers during training (Fixup, section 3).

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

from normless.probes import Setting, Watcher
from normless.residual import ResidualBlock, ResidualMap
from normless_papers.probes.owners import NO_OWNER, ParameterOwner, parameter_owners

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
