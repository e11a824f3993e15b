"""How far one step of gradient descent moves a network's function, against the rate and after some steps.

Fixup's design goal (section 3) is ‖∆f(x)‖ = Θ(η), whatever the depth, with ∆f(x) = f(x; θ − η ∂l/∂θ) − f(x; θ).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normless.probes import Loss, NetworkFunction, as_function, trainable_parameters

COLUMNS = ("steps", "rate", "loss", "update_norm", "update_per_rate", "predicted_update_per_rate")
RATES = (1e-4, 1e-3, 1e-2)
# What torch says of operations that it can differentiate once but not twice.
_NOT_TWICE = ("differentiate twice", "is not implemented")


def function_update_table(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    rates: Sequence[float] = RATES,
    steps: Sequence[int] = (0,),
    step_rate: float = 0.01,
    loss: Loss = F.cross_entropy,
    training: bool = True,
) -> pd.DataFrame:
    """The change of a network's output by one SGD step, at several rates, now and after some steps.

    A network whose classifier starts at zero moves nothing but that in its first step: there the design goal is met
    at 0 steps for that reason alone, and more steps say whether it is met. All steps are made on the one batch, by
    plain gradient descent on all trainable parameters. The network is left as it was.

    Args:
        model: the network.
        inputs: a batch, or a tuple or dictionary of arguments.
        targets: what the loss takes beside the logits.
        rates: the η of the measured step.
        steps: after how many steps it is measured.
        step_rate: their rate.
        loss: (logits, targets) to a scalar, the mean over examples as a rule.
        training: the mode; what dropout draws is the same before and after a step.

    Returns:
        One row per number of steps and rate: the loss before the measured step; `update_norm`, ‖∆f‖, root mean
        square over examples of the norm of the logits' change; the same over η; `predicted_update_per_rate`, its
        limit for η → 0, ‖(∂f/∂θ)(∂l/∂θ)‖, NaN for a network with an operation that cannot be differentiated twice.
        The steps of different examples may cancel: theorem 3 of the paper is about the step and output of one.

    Raises:
        ValueError: a rate is not positive, a number of steps negative, or the network has no trainable parameter.
    """
    if not rates or not all(rate > 0 for rate in (*rates, step_rate)) or not all(step >= 0 for step in steps):
        raise ValueError(
            f"Rates are above 0 and numbers of steps not below 0, got rates={list(rates)}, step_rate={step_rate} and "
            f"steps={list(steps)}."
        )
    rows: list[dict[str, Any]] = []
    parameters = trainable_parameters(model)
    with torch.enable_grad(), as_function(model, training=training) as logits:
        for step in range(max(steps) + 1):
            before = logits(parameters, inputs)
            value = loss(before, targets)
            gradients = _gradients(value, parameters)
            if step in steps:
                predicted = _slope(logits, parameters, gradients, inputs)
                for rate in rates:
                    with torch.no_grad():
                        change = logits(_stepped(parameters, gradients, rate), inputs) - before
                    norm = _root_mean_square(change)
                    numbers = (step, rate, float(value.detach()), norm, norm / rate, predicted)
                    rows.append(dict(zip(COLUMNS, numbers, strict=True)))
            parameters = _stepped(parameters, gradients, step_rate)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _gradients(value: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(parameters.items(), found, strict=True)
    }


def _stepped(parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """The parameters one step on, each a leaf again."""
    return {
        name: (parameter.detach() - rate * gradients[name]).requires_grad_() for name, parameter in parameters.items()
    }


def _slope(
    logits: NetworkFunction, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], inputs: Any
) -> float:
    """‖(∂f/∂θ)·gradient‖, root mean square over examples: (∂f/∂θ)ᵀu is linear in u, and its derivative is wanted."""
    held, along = list(parameters.values()), list(gradients.values())
    # Fused attention kernels cannot be differentiated twice.
    with sdpa_kernel(SDPBackend.MATH):
        try:
            z = logits(parameters, inputs)
            u = torch.zeros_like(z, requires_grad=True)
            back = torch.autograd.grad(z, held, u, create_graph=True, allow_unused=True)
            products = [(one * other).sum() for one, other in zip(back, along, strict=True) if one is not None]
            (change,) = torch.autograd.grad(sum(products, z.sum() * 0), u, allow_unused=True)
        except RuntimeError as error:
            if not any(words in str(error) for words in _NOT_TWICE):
                raise
            change = None
    # An operation whose backward pass is no function of u breaks the chain without a word.
    return float("nan") if change is None else _root_mean_square(change)


def _root_mean_square(change: Tensor) -> float:
    """Of the norm of the logits' change, over examples."""
    return float(change.double().flatten(1).square().sum(1).mean().sqrt())
