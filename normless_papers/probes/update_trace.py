"""The change of a network's output by each layer's gradient step: the terms of Fixup's theorem 3.

A step θ ← θ − η ∂l/∂θ changes the output z by

    ∆z = −η Σ_l J_l ∂l/∂z + O(η²),   J_l = (∂z/∂W_l)(∂z/∂W_l)ᵀ

with one symmetric positive semi-definite matrix per parameter. In a fully connected branch of ReLUs it is the paper's
J_l^i = ‖F_l^(i−)‖² (∂f/∂x_l)ᵀ F_l^(i+) (F_l^(i+))ᵀ (∂f/∂x_l). They do not cancel, so the traces add, and L branches
of equal scale change the output L times as much as one: their terms must be of order 1/L.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import Loss
from normless.residual import ResidualMap
from normless_papers.probes.network_function import (
    NetworkFunction,
    as_function,
    gradients_of,
    map_of,
    trainable_parameters,
)
from normless_papers.probes.parameter_owners import NO_OWNER, ParameterOwner, parameter_owners


@dataclass(frozen=True)
class UpdateTerm:
    """One J_l: its parameter and the matrix, shape (N, N), N = examples · classes, example by example."""

    parameter: str
    matrix: Tensor


def update_terms(model: nn.Module, inputs: Any, *, training: bool = True) -> list[UpdateTerm]:
    """The matrix J_l = (∂z/∂W_l)(∂z/∂W_l)ᵀ of every trainable parameter, in the order of `named_parameters`.

    For one example it is theorem 3's, of shape (c, c); for a batch z is the concatenation of all examples' logits.
    Costs one backward pass and one copy of the gradients per entry of z: use few examples. The network is left as it
    was. ValueError if it has no trainable parameter.
    """
    with torch.enable_grad(), as_function(model, training=training) as logits:
        _, rows = _jacobian(logits, trainable_parameters(model), inputs)
    return [UpdateTerm(name, jacobian @ jacobian.T) for name, jacobian in rows.items()]


def update_trace_table(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    residual_map: ResidualMap | None = None,
    *,
    loss: Loss = F.cross_entropy,
    training: bool = True,
) -> pd.DataFrame:
    """The contribution of every parameter to the change of the output by a gradient step (Fixup, theorem 3).

    Arguments are those of `normless.probes.observe`, costs and errors those of `update_terms`.

    Returns:
        One row per trainable parameter, in the order of `named_parameters`, with its `ParameterOwner`: trace and
        extreme eigenvalues of its J_l, the trace divided by the number of examples; `update_norm`, ‖J_l ∂l/∂z‖, the
        change of the output at a rate of 1; `alignment`, the cosine between that and the sum over all parameters.
    """
    residual_map = map_of(model, inputs, residual_map)
    with torch.enable_grad(), as_function(model, training=training) as logits:
        z, rows = _jacobian(logits, trainable_parameters(model), inputs)
        examples = len(z)
        z = z.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(z, targets), z)
    with torch.no_grad():
        return _table(rows, gradient.flatten().double(), examples, parameter_owners(residual_map))


def _jacobian(
    logits: NetworkFunction, parameters: Mapping[str, Tensor], inputs: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output z, and ∂z/∂W of each parameter, shape (N, elements), float64."""
    z = logits(parameters, inputs)
    gradients = gradients_of(list(z.flatten()), parameters)
    return z, {name: jacobian.double() for name, jacobian in gradients.items()}


def _table(
    rows: Mapping[str, Tensor], gradient: Tensor, examples: int, places: Mapping[str, ParameterOwner]
) -> pd.DataFrame:
    matrices = {name: jacobian @ jacobian.T for name, jacobian in rows.items()}
    updates = {name: matrix @ gradient for name, matrix in matrices.items()}
    whole = torch.stack(list(updates.values())).sum(0)
    table: list[dict[str, Any]] = []
    for name, matrix in matrices.items():
        finite = bool(matrix.isfinite().all())
        eigenvalues = torch.linalg.eigvalsh(matrix) if finite else matrix.new_full((1,), float("nan"))
        update = updates[name]
        place = places.get(name, NO_OWNER)
        table.append(
            {
                "parameter": name,
                **vars(place),
                "trace": float(matrix.trace()) / examples,
                "smallest_eigenvalue": float(eigenvalues[0]),
                "largest_eigenvalue": float(eigenvalues[-1]),
                "update_norm": float(update.norm()),
                "alignment": float(update @ whole / (update.norm() * whole.norm())),
            }
        )
    return pd.DataFrame(table)
