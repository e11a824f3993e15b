"""The noise of a minibatch step, exactly α²/|B| · M.

A loss that is the mean over N examples has the gradient ∇f = (1/N) Σ ∇f_i. A minibatch B drawn *with replacement*
gives the step (α/|B|) Σ_{i∈B} ∇f_i with mean α∇f and

    E ||step - α∇f||² = α²/|B| · M,    M = (1/N) Σ ||∇f_i - ∇f||²

("Understanding batch normalization", Bjorck et al. 2018, section 2.1, equation 2, which prints ||B||). Each f_i is a
function of one example, so the network is in eval mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from normless.probes import Loss
from normless.state import preserve_state


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trainable:
        raise ValueError(f"Expected a network with trainable parameters, but this {type(model).__name__} has none.")
    return trainable


def per_example_gradients(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, *, chunk: int = 32
) -> Tensor:
    """Return ∇f_i of every example by all trainable parameters, in the order of `named_parameters`: (N, P).

    Args:
        model: any network that `torch.func.vmap` can run.
        inputs, targets, loss: a row per example each, and the mean loss over examples.
        chunk: number of examples computed at a time.

    Raises:
        ValueError: no example, not one target per example, or no trainable parameter.
    """
    if not len(inputs) or len(inputs) != len(targets):
        raise ValueError(f"Expected a target per example, got {len(inputs)} examples and {len(targets)} targets.")
    trainable = {name: parameter.detach() for name, parameter in _trainable(model).items()}

    def example_loss(parameters: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
        output = functional_call(model, parameters, (example.unsqueeze(0),))
        return loss(output, target.unsqueeze(0))

    with preserve_state(model, training=False):
        gradients = vmap(grad(example_loss), in_dims=(None, 0, 0), chunk_size=chunk)(trainable, inputs, targets)
    return torch.cat([gradients[name].flatten(1) for name in trainable], dim=1)


def noise_per_example(gradients: Tensor) -> float:
    """Compute M of the gradients ∇f_i, shape (N, P): the noise of one example at learning rate 1."""
    wide = gradients.double()
    return float((wide - wide.mean(dim=0)).square().sum(dim=1).mean())


@dataclass(frozen=True)
class StepErrors:
    """Mean over minibatches of ||step - α∇f||², its standard error (NaN for one draw), and |mean of step - α∇f|."""

    mean_square: float
    standard_error: float
    bias: float


def step_errors(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, minibatches: Tensor, learning_rate: float = 1.0
) -> StepErrors:
    """Compare the step of each minibatch, by a backward pass, with the full step.

    Args:
        model: any network; it runs in eval mode, and its state is restored, including gradients.
        inputs, targets, loss: as for `per_example_gradients`.
        minibatches: indices of examples, shape (draws, |B|); repetitions are allowed.
        learning_rate: α.

    Raises:
        ValueError: no minibatch or an empty one, or no trainable parameter.
    """
    if minibatches.dim() != 2 or not minibatches.numel():
        raise ValueError(f"Expected a row of indices per minibatch, got shape {tuple(minibatches.shape)}.")
    parameters = list(_trainable(model).values())

    def gradient(indices: Tensor) -> Tensor:
        with torch.enable_grad():
            value = loss(model(inputs[indices]), targets[indices])
        parts = torch.autograd.grad(value, parameters, materialize_grads=True)
        return torch.cat([part.double().flatten() for part in parts])

    with preserve_state(model, training=False):
        full = gradient(torch.arange(len(inputs), device=minibatches.device))
        total, squares = torch.zeros_like(full), []
        for indices in minibatches:
            error = learning_rate * (gradient(indices) - full)
            total += error
            squares.append(float(error.square().sum()))
    count = len(squares)
    spread = float(np.std(squares, ddof=1)) / count**0.5 if count > 1 else float("nan")
    return StepErrors(float(np.mean(squares)), spread, float(total.norm()) / count)


def sgd_noise_table(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
    *,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16),
    learning_rates: Sequence[float] = (0.1,),
    draws: int = 256,
    seed: int = 0,
    chunk: int = 32,
) -> pd.DataFrame:
    """Measure the squared error of minibatch steps over draws with replacement, beside α²M/|B|.

    Args:
        model, inputs, targets, loss, chunk: as for `per_example_gradients`.
        batch_sizes, learning_rates: the |B| and the α.
        draws, seed: minibatches per row, and their seed.

    Returns:
        One row per batch size and learning rate: ``noise`` (measured E||step - α∇f||²), ``standard_error`` of it,
        ``predicted_noise``, ``bias`` (length of the mean error) and ``predicted_bias``, √(predicted_noise/draws), the
        expected length for that number of draws of an unbiased step.

    Raises:
        ValueError: a loss that is not the mean over examples, or an error of `per_example_gradients`.
    """
    _check_mean(model, inputs, targets, loss)
    noise = noise_per_example(per_example_gradients(model, inputs, targets, loss, chunk=chunk))
    generator, rows = torch.Generator().manual_seed(seed), []
    for size, rate in product(batch_sizes, learning_rates):
        minibatches = torch.randint(len(inputs), (draws, size), generator=generator).to(inputs.device)
        errors = step_errors(model, inputs, targets, loss, minibatches, rate)
        predicted = rate**2 * noise / size
        row = {"batch_size": size, "learning_rate": rate, "draws": draws, "noise": errors.mean_square}
        row |= {"standard_error": errors.standard_error, "predicted_noise": predicted}
        rows.append(row | {"bias": errors.bias, "predicted_bias": (predicted / draws) ** 0.5})
    return pd.DataFrame(rows)


def _check_mean(model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss) -> None:
    with preserve_state(model, training=False), torch.no_grad():
        outputs = model(inputs)
        whole = loss(outputs, targets).double()
        alone = torch.stack([loss(outputs[i : i + 1], targets[i : i + 1]).double() for i in range(len(inputs))])
    if not torch.allclose(whole, alone.mean(), rtol=1e-3, atol=1e-6):
        raise ValueError(
            f"Expected a loss that is the mean over examples, but the loss of all examples is {float(whole):.4g}, "
            f"and the mean of their losses is {float(alone.mean()):.4g}."
        )
