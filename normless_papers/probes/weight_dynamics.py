"""Norms of weights, their angle to the gradient, and multipliers during training (Fixup, section 3).

A gradient g orthogonal to its weight lengthens the weight at every step, ∆‖W‖² = η²‖g‖² − 2ηλ‖W‖² to first order in
λ; the norm settles where both balance, ‖W‖² = η‖g‖²/(2λ), and so shrinks after the rate drops. The product ⟨∂l/∂W, W⟩
is the same for every layer of a branch without biases and equals α ∂l/∂α of its multiplier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from math import nan
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.residual import ResidualBlock, ResidualMap
from normless_papers.probes.owners import NO_OWNER, ParameterOwner, parameter_owners

_OWNER = tuple(field.name for field in fields(ParameterOwner))
_NORMS = ("weight_norm", "gradient_norm", "inner_product", "cosine", "multiplier", "gamma_last")
COLUMNS = ("step", "parameter", *_OWNER, *_NORMS)


@dataclass
class WeightDynamics:
    """Records every weight's norm, its gradient's norm and the angle between them at chosen training steps.

    Call `record(step)` between the backward pass and the optimizer's step, or use `ride_along`.

    Args:
        model: the network that trains.
        map: its residual map.
        when: whether a step is recorded; every one if None.
    """

    model: nn.Module
    map: ResidualMap
    when: Callable[[int], bool] | None = None
    rows: list[dict[str, Any]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        named = dict(self.model.named_parameters(remove_duplicate=False))
        owners = parameter_owners(self.map)
        self._weights = [
            (name, parameter, owner)
            for name, parameter in self.model.named_parameters()
            if (owner := owners.get(name, NO_OWNER)).position and parameter.dim() > 1
        ]
        self._multipliers = {block.name: _multipliers(block, named) for block in self.map.blocks}
        self._gammas = {block.name: self._last_gammas(block, named) for block in self.map.blocks}

    @torch.no_grad()
    def record(self, step: int) -> None:
        """Record a step if `when` selects it; the network is only read."""
        if self.when is not None and not self.when(step):
            return
        for name, parameter, owner in self._weights:
            row = {"step": step, "parameter": name, **vars(owner), **_norms_and_angle(parameter)}
            if owner.place == "branch":
                row["multiplier"] = _root_mean_square(self._multipliers[owner.name])
                row["gamma_last"] = _root_mean_square(self._gammas[owner.name])
            self.rows.append(row)

    @contextmanager
    def ride_along(self, optimizer: Optimizer, *, first: int = 1) -> Iterator[None]:
        """Record before each step of the optimizer in the body, counted from `first`."""
        step = first

        def before_step(*_: Any) -> None:
            nonlocal step
            self.record(step)
            step += 1

        handle = optimizer.register_step_pre_hook(before_step)
        try:
            yield
        finally:
            handle.remove()

    def table(self) -> pd.DataFrame:
        """A row per recorded step and weight, with its `ParameterOwner`.

        `weight_norm` and `gradient_norm` are Euclidean, `inner_product` is ⟨∂l/∂W, W⟩ and `cosine` that of the angle,
        0 for orthogonal ones, NaN without a gradient. For weights on a branch `multiplier` is |α| at its end and
        `gamma_last` the γ of its last norm, each the root mean square over several; NaN without one.
        """
        return pd.DataFrame(self.rows, columns=list(COLUMNS))

    def _last_gammas(self, block: ResidualBlock, named: dict[str, nn.Parameter]) -> list[Tensor]:
        last = [layer for layer in block.layers if layer.kind == "norm" and self.map.norms[layer.path] == "last"]
        return [named[layer.gamma] for layer in last if layer.gamma is not None]


def _multipliers(block: ResidualBlock, named: dict[str, nn.Parameter]) -> list[Tensor]:
    """The multipliers at the ends of a block's branches: of their last weight layers, or of the sum."""
    places = [*(layer.path for layer in block.branch_layers), block.sum]
    return [named[f"{place}.multiplier"] for place in places if f"{place}.multiplier" in named]


def _root_mean_square(values: list[Tensor]) -> float:
    return float(torch.cat([value.flatten().double() for value in values]).square().mean().sqrt()) if values else nan


def _norms_and_angle(parameter: Tensor) -> dict[str, float]:
    norm = float(parameter.double().norm())
    if parameter.grad is None:
        return {"weight_norm": norm}
    gradient = parameter.grad.double()
    length, product = float(gradient.norm()), float((gradient * parameter.double()).sum())
    cosine = product / (norm * length) if norm and length else nan
    return {"weight_norm": norm, "gradient_norm": length, "inner_product": product, "cosine": cosine}
