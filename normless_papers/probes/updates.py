"""The change of a network's output by a step of gradient descent (Fixup, section 3 and theorems 3 and 4).

The change of a network's function by one step of gradient descent, by learning rate and after some steps.

Fixup's design goal (section 3) is ‖∆f(x)‖ = Θ(η) at any depth, with ∆f(x) = f(x; θ − η ∂l/∂θ) − f(x; θ).

The change of a network's output by each layer's gradient step: the terms of Fixup's theorem 3.

A step θ ← θ − η ∂l/∂θ changes the output z by

    ∆z = −η Σ_l J_l ∂l/∂z + O(η²),   J_l = (∂z/∂W_l)(∂z/∂W_l)ᵀ

with a symmetric positive semi-definite matrix per parameter. In a fully connected branch of ReLUs it is the paper's
J_l^i = ‖F_l^(i−)‖² (∂f/∂x_l)ᵀ F_l^(i+) (F_l^(i+))ᵀ (∂f/∂x_l). Such matrices do not cancel: their traces add, and L
branches of equal scale change the output L times as much as one branch, so their terms must be of order 1/L.

A residual branch of scalars: initializations for which L branches together change by Θ(η) in one step.

The branch F(x) = (∏ a_i) x has m scalar layers. One step of gradient descent, with ∂ℓ/∂F = Θ(1) and x = Θ(1), changes
it to first order by

    ΔF = -η ∂ℓ/∂F · Σ_i (F/a_i)²,    F/a_i = (∏_{k≠i} a_k) x also for a_i = 0

which is Θ(η/L), as L aligned branches require, if and only if (∏_{k≠j} a_k) x = Θ(1/√L) for the smallest a_j (Fixup,
Zhang et al. 2019, appendix B.2, theorem 4, equations 15 to 21; equation 5). Both a_i = L^(-1/(2m-2)) for all i,
and the same with a_m = 0, Fixup's choice, satisfy it; a_i = 1 does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normless.probes import Loss
from normless_papers.probes.network_function import (
    NO_OWNER,
    NetworkFunction,
    as_function,
    gradients_by,
    gradients_of,
    map_of,
    parameter_owners,
    trainable_parameters,
)

COLUMNS = ("steps", "rate", "loss", "update_norm", "update_per_rate", "predicted_update_per_rate")
# Words of torch's errors for operations that cannot be differentiated twice.
_NOT_TWICE = ("differentiate twice", "is not implemented")


def function_update_table(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    rates: Sequence[float] = (1e-4, 1e-3, 1e-2),
    steps: Sequence[int] = (0,),
    step_rate: float = 0.01,
    loss: Loss = F.cross_entropy,
) -> pd.DataFrame:
    """Measure the change of a network's output by one SGD step, at several rates, now and after some steps.

    If the classifier starts at zero, the first step changes the classifier alone and meets the design goal trivially
    at 0 steps; measure after more steps. All steps use the same batch and plain gradient descent on all trainable
    parameters. The network's state is restored.

    Args:
        model, inputs, targets, loss: as for `normless.probes.observe`; dropout draws the same masks before and after
            a step.
        rates: the rates η of the measured step.
        steps: the numbers of preceding steps.
        step_rate: the rate of these.

    Returns:
        One row per number of steps and rate: the loss before the measured step; `update_norm`, ‖∆f‖, root mean square
        over examples of the norm of the logits' change; the same over η; `predicted_update_per_rate`, its limit for
        η → 0, ‖(∂f/∂θ)(∂l/∂θ)‖, NaN for a network with an operation that cannot be differentiated twice.

    Raises:
        ValueError: the network has no trainable parameter.
    """
    rows: list[tuple[float, ...]] = []
    parameters = trainable_parameters(model)
    with torch.enable_grad(), as_function(model, training=True) as logits:
        for step in range(max(steps) + 1):
            before = logits(parameters, inputs)
            value = loss(before, targets)
            gradients = gradients_by(value, parameters)
            if step in steps:
                predicted = _slope(logits, parameters, gradients, inputs)
                for rate in rates:
                    with torch.no_grad():
                        change = logits(_stepped(parameters, gradients, rate), inputs) - before
                    norm = _root_mean_square(change)
                    rows.append((step, rate, float(value.detach()), norm, norm / rate, predicted))
            parameters = _stepped(parameters, gradients, step_rate)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _stepped(parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """Return the parameters after one step, as leaves."""
    return {name: (value.detach() - rate * gradients[name]).requires_grad_() for name, value in parameters.items()}


def _slope(
    logits: NetworkFunction, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], inputs: Any
) -> float:
    """Compute ‖(∂f/∂θ)·gradient‖, root mean square over examples, as the derivative of (∂f/∂θ)ᵀu by u."""
    # Fused attention kernels cannot be differentiated twice.
    with sdpa_kernel(SDPBackend.MATH):
        try:
            z = logits(parameters, inputs)
            u = torch.zeros_like(z, requires_grad=True)
            back = torch.autograd.grad(z, list(parameters.values()), u, create_graph=True, allow_unused=True)
            along = zip(back, gradients.values(), strict=True)
            products = [(slope * gradient).sum() for slope, gradient in along if slope is not None]
            (change,) = torch.autograd.grad(sum(products, z.sum() * 0), u, allow_unused=True)
        except RuntimeError as error:
            if not any(words in str(error) for words in _NOT_TWICE):
                raise
            change = None
    # A backward pass that is not differentiable by u gives None instead of an error.
    return float("nan") if change is None else _root_mean_square(change)


def _root_mean_square(change: Tensor) -> float:
    """Return the root mean square over examples of the norm of the logits' change."""
    return float(change.double().flatten(1).square().sum(1).mean().sqrt())


@dataclass(frozen=True)
class UpdateTerm:
    """A parameter's J_l, a matrix of shape (N, N), N = examples · classes, example by example."""

    parameter: str
    matrix: Tensor


def update_terms(model: nn.Module, inputs: Any) -> list[UpdateTerm]:
    """Compute the matrix J_l of every trainable parameter, in the order of `named_parameters`.

    For one example it is theorem 3's, of shape (c, c); for a batch z is the concatenation of all examples' logits.
    Costs a backward pass and a copy of the gradients per entry of z, so use few examples. The network's state is
    restored. ValueError without trainable parameters.
    """
    return _terms(model, inputs)[1]


def _terms(model: nn.Module, inputs: Any) -> tuple[Tensor, list[UpdateTerm]]:
    """Return the output z and its terms, in float64."""
    parameters = trainable_parameters(model)
    with torch.enable_grad(), as_function(model, training=True) as logits:
        z = logits(parameters, inputs)
        jacobians = gradients_of(list(z.flatten()), parameters)
    return z.detach(), [UpdateTerm(name, jac.double() @ jac.double().T) for name, jac in jacobians.items()]


def update_trace_table(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: Loss = F.cross_entropy,
) -> pd.DataFrame:
    """Measure the contribution of every parameter to the change of the output by a gradient step.

    Arguments are those of `normless.probes.observe`, costs and errors those of `update_terms`.

    Returns:
        One row per trainable parameter, in the order of `named_parameters`, with its `ParameterOwner`: trace and
        extreme eigenvalues of its J_l, the trace divided by the number of examples; `update_norm`, ‖J_l ∂l/∂z‖, the
        change of the output at rate 1; `alignment`, the cosine between it and the sum over all parameters.
    """
    owners = parameter_owners(map_of(model, inputs, None))
    z, terms = _terms(model, inputs)
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


Option: TypeAlias = Literal["equal", "zero_last", "ones"]
"""All a_i = L^(-1/(2m-2)); the same with a_m = 0 (as in Fixup's experiments); all a_i = 1."""


def scalar_branch(option: Option, blocks: int, layers: int) -> Tensor:
    """Return the scalars a_1, …, a_m of one of L branches at initialization."""
    if option not in get_args(Option):
        raise ValueError(f"option is {', '.join(map(repr, get_args(Option)))}, got {option!r}.")
    if blocks < 1 or layers < 2:
        raise ValueError(f"Expected at least one block and two layers in a branch, got {blocks} and {layers}.")
    scalars = torch.ones(layers, dtype=torch.float64)
    if option != "ones":
        scalars *= blocks ** (-1 / (2 * layers - 2))
    if option == "zero_last":
        scalars[-1] = 0.0
    return scalars


def exact_update(scalars: Tensor, learning_rate: float) -> float:
    """Compute the exact change of F by one step of gradient descent, at x = ∂ℓ/∂F = 1."""
    before = scalars.detach().double().requires_grad_()
    output = before.prod()
    (gradient,) = torch.autograd.grad(output, before)
    after = (before - learning_rate * gradient).detach().prod()
    return float(after - output.detach())


def first_order_update(scalars: Tensor, learning_rate: float) -> float:
    """Compute the change of F to first order (equations 17 and 18); arguments as for `exact_update`."""
    values = scalars.tolist()
    others = [np.prod(values[:i] + values[i + 1 :]) for i in range(len(values))]
    return float(-learning_rate * sum(other**2 for other in others))


def scalar_branch_table(
    blocks: Sequence[int] = (4, 16, 64, 256, 1024, 4096),
    layers: Sequence[int] = (2, 3, 4),
    *,
    learning_rate: float = 1e-3,
) -> pd.DataFrame:
    """Tabulate the change of a scalar branch in one step, exact and to first order, at x = ∂ℓ/∂F = 1.

    One row per option, number of layers m in a branch and number of branches L (``blocks``): ``output`` (F before the
    step), ``update`` (ΔF, exact), ``predicted_update``. ValueError for no block or fewer than two layers.
    """
    rows = []
    for option, depth, count in product(get_args(Option), layers, blocks):
        scalars = scalar_branch(option, count, depth)
        row = {"option": option, "layers": depth, "blocks": count, "learning_rate": learning_rate}
        row |= {"output": float(scalars.prod()), "update": exact_update(scalars, learning_rate)}
        rows.append(row | {"predicted_update": first_order_update(scalars, learning_rate)})
    return pd.DataFrame(rows)


def update_slopes(table: pd.DataFrame) -> pd.DataFrame:
    """Fit the slope of log|ΔF| against log L by least squares: -1 if branches together change by Θ(η).

    From rows of `scalar_branch_table`, one row per option and m: ``option``, ``layers``, ``slope`` of the exact
    updates and ``predicted_slope``, -1, or 0 for ones. ValueError for fewer than two L.
    """
    rows = []
    for (option, layers), curve in table.groupby(["option", "layers"], sort=False):
        if curve["blocks"].nunique() < 2:
            raise ValueError(f"Expected at least two numbers of blocks, got one for {option} with {layers} layers.")
        across, up = np.log(curve["blocks"].to_numpy(float)), np.log(curve["update"].abs().to_numpy(float))
        slope = float(np.polynomial.Polynomial.fit(across, up, 1).convert().coef[1])
        rows.append((option, layers, slope, 0.0 if option == "ones" else -1.0))
    return pd.DataFrame(rows, columns=["option", "layers", "slope", "predicted_slope"])
