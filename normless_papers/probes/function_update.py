"""The change of a network's function by one step of gradient descent, by learning rate and after some steps.

Fixup's design goal (section 3) is ‖∆f(x)‖ = Θ(η) at any depth, with ∆f(x) = f(x; θ − η ∂l/∂θ) − f(x; θ).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normless.probes import Loss
from normless_papers.probes.network_function import NetworkFunction, as_function, gradients_by, trainable_parameters

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
    training: bool = True,
) -> pd.DataFrame:
    """Measure the change of a network's output by one SGD step, at several rates, now and after some steps.

    If the classifier starts at zero, the first step changes the classifier alone and meets the design goal trivially
    at 0 steps; measure after more steps. All steps use the same batch and plain gradient descent on all trainable
    parameters. The network's state is restored.

    Args:
        model, inputs, targets, loss, training: as for `normless.probes.observe`; dropout draws the same masks before
            and after a step.
        rates: the rates η of the measured step.
        steps: the numbers of preceding steps.
        step_rate: the rate of these.

    Returns:
        One row per number of steps and rate: the loss before the measured step; `update_norm`, ‖∆f‖, root mean square
        over examples of the norm of the logits' change; the same over η; `predicted_update_per_rate`, its limit for
        η → 0, ‖(∂f/∂θ)(∂l/∂θ)‖, NaN for a network with an operation that cannot be differentiated twice.

    Raises:
        ValueError: a rate is not positive, a number of steps negative, or the network has no trainable parameter.
    """
    if not rates or not all(rate > 0 for rate in (*rates, step_rate)) or not all(step >= 0 for step in steps):
        raise ValueError(
            f"Rates are above 0 and numbers of steps not below 0, got rates={list(rates)}, step_rate={step_rate} and "
            f"steps={list(steps)}."
        )
    rows: list[tuple[float, ...]] = []
    parameters = trainable_parameters(model)
    with torch.enable_grad(), as_function(model, training=training) as logits:
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
