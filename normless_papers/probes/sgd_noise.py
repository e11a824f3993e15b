"""The noise of a minibatch step, exactly α²/|B| · M.

A loss that is the mean over N examples has the gradient ∇f = (1/N) Σ ∇f_i. A minibatch B drawn *with replacement*
gives the step (α/|B|) Σ_{i∈B} ∇f_i with mean α∇f and

    E ||step - α∇f||² = α²/|B| · M,    M = (1/N) Σ ||∇f_i - ∇f||²

("Understanding batch normalization", Bjorck et al. 2018, section 2.1, equation 2, which prints ||B||). Each f_i is a
function of one example, so the network is in eval mode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from normless.probes import Loss
from normless.state import preserve_state
from normless_papers.probes.network_function import as_function, gradients_by, trainable_parameters


def per_example_gradients(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, *, chunk: int = 32
) -> Tensor:
    """Return ∇f_i of every example by all trainable parameters, in the order of `named_parameters`: (N, P).

    Args:
        model: any network that `torch.func.vmap` can run.
        inputs, targets, loss: a row per example each, and the mean loss over examples.
        chunk: number of examples computed at a time.
    """
    trainable = {name: parameter.detach() for name, parameter in trainable_parameters(model).items()}

    def example_loss(parameters: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
        output = functional_call(model, parameters, (example.unsqueeze(0),))
        return loss(output, target.unsqueeze(0))

    with preserve_state(model, training=False):
        gradients = vmap(grad(example_loss), in_dims=(None, 0, 0), chunk_size=chunk)(trainable, inputs, targets)
    return torch.cat([gradients[name].flatten(1) for name in trainable], dim=1)


def noise_table(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, minibatches: Sequence[tuple[float, Tensor]]
) -> pd.DataFrame:
    """Measure the squared error of minibatch steps, beside α²M/|B|; arguments as for `per_example_gradients`.

    Args:
        minibatches: pairs of a learning rate α and indices of examples, shape (draws, |B|), which may repeat.

    Returns:
        A row per pair: ``batch_size``, ``learning_rate``, ``draws``, ``noise`` (the mean of ||step - α∇f||²),
        ``standard_error`` of it (NaN for one draw), ``predicted_noise``, ``bias`` (length of the mean error) and
        ``predicted_bias``, √(predicted_noise/draws), the expected length for so many draws of an unbiased step.
    """
    gradients = per_example_gradients(model, inputs, targets, loss).double()
    noise = float((gradients - gradients.mean(dim=0)).square().sum(dim=1).mean())
    parameters, rows = trainable_parameters(model), []
    with torch.enable_grad(), as_function(model, training=False) as network:

        def gradient(indices: Tensor) -> Tensor:
            value = loss(network(parameters, inputs[indices]), targets[indices])
            return torch.cat([part.double().flatten() for part in gradients_by(value, parameters).values()])

        full = gradient(torch.arange(len(inputs), device=inputs.device))
        for rate, drawn in minibatches:
            total, squares, (count, size) = torch.zeros_like(full), list[float](), drawn.shape
            for indices in drawn:
                error = rate * (gradient(indices) - full)
                total += error
                squares.append(float(error.square().sum()))
            predicted = rate**2 * noise / size
            row = {"batch_size": size, "learning_rate": rate, "draws": count, "noise": float(np.mean(squares))}
            row["standard_error"] = float(np.std(squares, ddof=1)) / count**0.5 if count > 1 else float("nan")
            row |= {"predicted_noise": predicted, "bias": float(total.norm()) / count}
            rows.append(row | {"predicted_bias": (predicted / count) ** 0.5})
    return pd.DataFrame(rows)
