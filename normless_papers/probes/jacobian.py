"""Singular values of the Jacobian of a network, or of a stack of its layers, on a batch.

For a linear network with random weights they are those of a product of random matrices
(`normless_papers.theory.singular_values`); here they are measured on real layers, including activations.

In eval mode examples are independent, and the Jacobian of an example is ∂output_b/∂input_b; an untrained batch norm
is then the identity, with its initial running statistics. In training mode a batch norm makes every output depend on
every input of the batch, so the Jacobian is that of the whole batch, (B·out) × (B·in): fixed statistics would hide
the directions in which a channel's mean and scale cannot change.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from normless.state import preserve_state

# Elements of all Jacobians together: 2 GiB in float64.
_LARGEST = 2**28


def jacobian_spectrum(
    model: nn.Module,
    inputs: Tensor,
    start: str | None = None,
    stop: str | None = None,
    *,
    training: bool = False,
    dtype: torch.dtype | None = torch.float64,
    chunk: int = 32,
) -> pd.DataFrame:
    """Return the singular values of ∂(output of ``stop``)/∂(input of ``start``), per example or per batch.

    They are per batch if examples mix, that is, if the gradient of an example's output with respect to the others'
    inputs is not zero. A copy of the network runs; torch's random state is restored.

    Args:
        model: the network.
        inputs: a batch, shape (B, …).
        start: path of a module, with its first positional input as the Jacobian's input; the network's input if None.
            Connections to ``stop`` around ``start`` are held fixed.
        stop: path of the module with the Jacobian's output; the network's output if None.
        training: the mode; dropout draws one mask for the whole Jacobian.
        dtype: type of the copy and its inputs; the network's if None. Singular values below about 1e-7 of the largest
            are rounding errors in float32, below 1e-15 in float64.
        chunk: rows of the Jacobian per vectorized backward pass; 1 for operators that cannot be vectorized.

    Returns:
        One row per singular value, largest first: ``spectrum`` (the example, or 0 for the batch), ``examples`` (1, or
        B if the examples mix), ``index``, ``singular_value``, ``squared``.

    Raises:
        ValueError: no such module, a module that does not run exactly once, an input or output that is not a
            floating-point tensor with a row per example, no path from ``start`` to ``stop``, or Jacobians of more
            than 2 GiB.
    """
    if chunk < 1:
        raise ValueError(f"Expected a chunk of at least one row, got {chunk}.")
    network, inputs = deepcopy(model).requires_grad_(False), inputs.detach().clone()
    if dtype is not None:
        network, inputs = network.to(dtype), inputs.to(dtype) if inputs.is_floating_point() else inputs
    with preserve_state(network, training=training), torch.enable_grad():
        entering, leaving = _ends(network, inputs, start, stop)
        mixes = _mixes(entering, leaving)
        _check_size(entering, leaving, mixes)
        # If examples do not mix, a unit vector serves all examples at once.
        units = torch.eye(leaving[0].numel() * (len(leaving) if mixes else 1)).to(leaving)
        rows = torch.cat([_backward(entering, leaving, vectors) for vectors in torch.split(units, chunk)])
    jacobians = rows.flatten(1).unsqueeze(0) if mixes else rows.transpose(0, 1)
    values = torch.linalg.svdvals(jacobians.double()).cpu().numpy()
    spectrum, index = np.indices(values.shape).reshape(2, -1)
    columns = {"spectrum": spectrum, "examples": len(leaving) if mixes else 1, "index": index}
    return pd.DataFrame({**columns, "singular_value": values.ravel(), "squared": values.ravel() ** 2})


def _ends(network: nn.Module, inputs: Tensor, start: str | None, stop: str | None) -> tuple[Tensor, Tensor]:
    """Return the input of ``start``, as a leaf, and the output of ``stop`` in one graph, a row per example each."""
    starts: list[Tensor] = []
    stops: list[Any] = []

    def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        value = args[0] if args else None
        if not isinstance(value, Tensor) or not value.is_floating_point():
            place = "the network's input" if start is None else f"the first positional input of {start!r}"
            kind = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"Expected a floating-point tensor as {place}, got {kind}.")
        starts.append(value.detach().requires_grad_())
        # A clone, since a leaf must not be modified in place.
        return starts[-1].clone(), *args[1:]

    def after(_: nn.Module, __: Any, output: Any) -> None:
        stops.append(output.clone() if isinstance(output, Tensor) else output)

    _module(network, start).register_forward_pre_hook(before)
    _module(network, stop).register_forward_hook(after)
    network(inputs)
    for ends, path in ((starts, start), (stops, stop)):
        if len(ends) != 1:
            raise ValueError(f"Expected {path!r} to run once, but it ran {len(ends)} times.")
    entering, leaving = starts[0], stops[0]
    if not isinstance(leaving, Tensor) or not leaving.is_floating_point() or leaving.dim() < 1:
        raise ValueError(f"Expected one floating-point tensor as output of the stack, got {type(leaving).__name__}.")
    if len(entering) != len(leaving) or not len(entering):
        raise ValueError(
            f"Expected a row per example at both ends of the stack, got shapes {tuple(entering.shape)} and "
            f"{tuple(leaving.shape)}."
        )
    if not _connected(entering, leaving):
        raise ValueError(f"Nothing that enters {start or 'the network'!r} reaches {stop or 'the output'!r}.")
    return entering, leaving


def _module(network: nn.Module, path: str | None) -> nn.Module:
    try:
        return network.get_submodule(path or "")
    except AttributeError:
        raise ValueError(f"Expected the path of a module of the network, got {path!r}.") from None


def _connected(entering: Tensor, leaving: Tensor) -> bool:
    if not leaving.requires_grad:
        return False
    gradients = torch.autograd.grad(leaving.sum(), entering, retain_graph=True, allow_unused=True)
    return gradients[0] is not None


def _backward(entering: Tensor, leaving: Tensor, cotangents: Tensor) -> Tensor:
    """Return gradients at the input, (rows, B, in), for cotangents (rows, B·out), or (rows, out) for all examples."""
    count, examples = len(cotangents), len(leaving)
    shaped = cotangents.view(count, -1, leaving[0].numel()).expand(-1, examples, -1).reshape(count, *leaving.shape)
    several = count > 1
    gradients = torch.autograd.grad(
        leaving, entering, shaped if several else shaped[0], retain_graph=True, is_grads_batched=several
    )
    return gradients[0].reshape(count, examples, -1)


def _mixes(entering: Tensor, leaving: Tensor) -> bool:
    """Whether an example's output depends on another's input, by the gradient in a random direction."""
    for example in range(len(leaving) if len(leaving) > 1 else 0):
        cotangent = torch.zeros_like(leaving).flatten(1)
        cotangent[example].normal_()
        gradient = _backward(entering, leaving, cotangent.view(1, -1))[0]
        gradient[example] = 0
        if gradient.any():
            return True
    return False


def _check_size(entering: Tensor, leaving: Tensor, mixes: bool) -> None:
    elements = leaving.numel() * (entering if mixes else entering[0]).numel()
    if elements > _LARGEST:
        raise ValueError(
            f"The Jacobians would have {elements:.2g} elements, more than {_LARGEST:.2g}; use fewer examples or "
            "smaller inputs, or a start or stop with fewer features."
        )
