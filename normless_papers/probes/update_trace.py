"""The change of a network's output by each layer's gradient step: the terms of Fixup's theorem 3.

A step θ ← θ − η ∂l/∂θ changes the output z by

    ∆z = −η Σ_l J_l ∂l/∂z + O(η²),   J_l = (∂z/∂W_l)(∂z/∂W_l)ᵀ

with a symmetric positive semi-definite matrix per parameter. In a fully connected branch of ReLUs it is the paper's
J_l^i = ‖F_l^(i−)‖² (∂f/∂x_l)ᵀ F_l^(i+) (F_l^(i+))ᵀ (∂f/∂x_l). Such matrices do not cancel: their traces add, and L
branches of equal scale change the output L times as much as one branch, so their terms must be of order 1/L.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import Loss
from normless.residual import ResidualMap
from normless_papers.probes.network_function import as_function, gradients_of, map_of, trainable_parameters
from normless_papers.probes.owners import NO_OWNER, parameter_owners


@dataclass(frozen=True)
class UpdateTerm:
    """A parameter's J_l, a matrix of shape (N, N), N = examples · classes, example by example."""

    parameter: str
    matrix: Tensor


def update_terms(model: nn.Module, inputs: Any, *, training: bool = True) -> list[UpdateTerm]:
    """Compute the matrix J_l of every trainable parameter, in the order of `named_parameters`.

    For one example it is theorem 3's, of shape (c, c); for a batch z is the concatenation of all examples' logits.
    Costs a backward pass and a copy of the gradients per entry of z, so use few examples. The network's state is
    restored. ValueError without trainable parameters.
    """
    return _terms(model, inputs, training)[1]


def _terms(model: nn.Module, inputs: Any, training: bool) -> tuple[Tensor, list[UpdateTerm]]:
    """Return the output z and its terms, in float64."""
    parameters = trainable_parameters(model)
    with torch.enable_grad(), as_function(model, training=training) as logits:
        z = logits(parameters, inputs)
        jacobians = gradients_of(list(z.flatten()), parameters)
    return z.detach(), [UpdateTerm(name, jac.double() @ jac.double().T) for name, jac in jacobians.items()]


def update_trace_table(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    residual_map: ResidualMap | None = None,
    *,
    loss: Loss = F.cross_entropy,
    training: bool = True,
) -> pd.DataFrame:
    """Measure the contribution of every parameter to the change of the output by a gradient step.

    Arguments are those of `normless.probes.observe`, costs and errors those of `update_terms`.

    Returns:
        One row per trainable parameter, in the order of `named_parameters`, with its `ParameterOwner`: trace and
        extreme eigenvalues of its J_l, the trace divided by the number of examples; `update_norm`, ‖J_l ∂l/∂z‖, the
        change of the output at rate 1; `alignment`, the cosine between it and the sum over all parameters.
    """
    owners = parameter_owners(map_of(model, inputs, residual_map))
    z, terms = _terms(model, inputs, training)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss(z.requires_grad_(), targets), z)
    updates = torch.stack([term.matrix @ gradient.flatten().double() for term in terms])
    whole = updates.sum(0)
    rows: list[dict[str, Any]] = []
    for term, update in zip(terms, updates, strict=True):
        finite = bool(term.matrix.isfinite().all())
        eigenvalues = torch.linalg.eigvalsh(term.matrix) if finite else term.matrix.new_full((1,), float("nan"))
        row = {"parameter": term.parameter, **vars(owners.get(term.parameter, NO_OWNER))}
        row |= {"trace": float(term.matrix.trace()) / len(z), "smallest_eigenvalue": float(eigenvalues[0])}
        row |= {"largest_eigenvalue": float(eigenvalues[-1]), "update_norm": float(update.norm())}
        rows.append(row | {"alignment": float(update @ whole / (update.norm() * whole.norm()))})
    return pd.DataFrame(rows)
