"""Singular values of the Jacobian of a network, or of a stack of its layers, on a batch.

For a linear network with random weights they are those of a product of random matrices (`singular_values`); here
they are measured on real layers, activations included.

What the Jacobian of *one* example is depends on what the norms do. In eval mode every example is computed alone,
and ∂output_b/∂input_b is all there is; but an untrained batch norm then is the identity, since its running
statistics are those it was born with. In training mode a batch norm lets every input of the batch act on every
output, and holding the batch's statistics fixed would leave out just the part that norms add: the directions in
which a channel's mean and scale cannot move. Hence the Jacobian there is that of the whole batch, (B·out) × (B·in).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from normless.probes import preserve_state

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
    """Singular values of ∂(output of ``stop``)/∂(input of ``start``), per example or, where examples mix, per batch.

    Whether they mix is measured: in the mode asked for, by the gradient of each example's output by the others'
    inputs. The network is left as it was, and so is torch's random state.

    Args:
        model: the network; a copy of it runs.
        inputs: a batch, shape (B, …).
        start: the module (a path as in `named_modules`, as a block's name) at whose first positional input the
            Jacobian starts; the network's input without it. What reaches ``stop`` around ``start`` is held fixed.
        stop: the module at whose output it ends; the network's output without it.
        training: whether norms take the batch's statistics and dropout drops (one draw for the whole Jacobian).
        dtype: what the copy and its inputs are cast to. Small singular values are lost in rounding below about
            1e-7 of the largest in float32, 1e-15 in float64. None keeps what the network has.
        chunk: how many rows of the Jacobian one vectorized backward pass finds; with 1 there is no vectorization,
            which some operators lack.

    Returns:
        One row per singular value, largest first: ``spectrum`` (the example, or 0 for the one of the batch),
        ``examples`` (1, or B where the examples mix), ``index``, ``singular_value``, ``squared``. Each spectrum has
        as many rows as the smaller side of its Jacobian.

    Raises:
        ValueError: no such module, one that runs other than once, an input or output that is not one floating-point
            tensor with a row per example, no way from ``start`` to ``stop``, or Jacobians of more than 2 GiB.
    """
    if chunk < 1:
        raise ValueError(f"Expected a chunk of at least one row, got {chunk}.")
    network = deepcopy(model) if dtype is None else deepcopy(model).to(dtype)
    network.requires_grad_(False)
    entering = inputs.detach()
    if dtype is not None and entering.is_floating_point():
        entering = entering.to(dtype)
    with preserve_state(network, training=training), torch.enable_grad():
        stack = _run(network, entering, start, stop)
        mixes = _mixes(stack)
        _check_size(stack, mixes)
        jacobians = _of_batch(stack, chunk) if mixes else _per_example(stack, chunk)
    return _table(torch.linalg.svdvals(jacobians.double()), stack.batch if mixes else 1)


@dataclass(frozen=True)
class _Stack:
    """The two ends of the stack in one graph, a row per example each."""

    entering: Tensor
    leaving: Tensor

    @property
    def batch(self) -> int:
        return len(self.entering)

    def backward(self, cotangents: Tensor) -> Tensor:
        """Gradients at the input for cotangents (rows, B, out), shape (rows, B, in)."""
        rows, shape = len(cotangents), self.leaving.shape
        if rows == 1:
            single = torch.autograd.grad(self.leaving, self.entering, cotangents[0].view(shape), retain_graph=True)
            return single[0].reshape(1, self.batch, -1)
        found = torch.autograd.grad(
            self.leaving,
            self.entering,
            cotangents.view(rows, *shape),
            retain_graph=True,
            is_grads_batched=True,
        )
        return found[0].reshape(rows, self.batch, -1)

    @property
    def outputs(self) -> int:
        return self.leaving[0].numel()


def _run(network: nn.Module, inputs: Tensor, start: str | None, stop: str | None) -> _Stack:
    ends: dict[str, list[Tensor]] = {"start": [], "stop": []}
    if start is None:
        inputs = _leaf(inputs, "the network's input")
        ends["start"].append(inputs)
    with _watching(network, start, stop, ends):
        # A clone, here and below: a module that works in place may not be given a leaf.
        output = network(inputs.clone())
    if stop is None:
        ends["stop"].append(output)
    for end, path in (("start", start), ("stop", stop)):
        if len(ends[end]) != 1:
            raise ValueError(f"Expected {path!r} to run once, but it ran {len(ends[end])} times.")
    entering, leaving = ends["start"][0], ends["stop"][0]
    if not isinstance(leaving, Tensor) or not leaving.is_floating_point() or leaving.dim() < 1:
        raise ValueError(f"Expected one floating-point tensor as output of the stack, got {type(leaving).__name__}.")
    if len(entering) != len(leaving) or not len(entering):
        raise ValueError(
            f"Expected a row per example at both ends of the stack, got shapes {tuple(entering.shape)} and "
            f"{tuple(leaving.shape)}."
        )
    if not _connected(entering, leaving):
        raise ValueError(f"Nothing that enters {start or 'the network'!r} reaches {stop or 'the output'!r}.")
    return _Stack(entering, leaving)


@contextmanager
def _watching(
    network: nn.Module, start: str | None, stop: str | None, ends: dict[str, list[Tensor]]
) -> Iterator[None]:
    """Make the input of ``start`` a leaf of the graph and keep it, and keep the output of ``stop``."""

    def enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        leaf = _leaf(args[0] if args else None, f"the first positional input of {start!r}")
        ends["start"].append(leaf)
        return leaf.clone(), *args[1:]

    def leave(_: nn.Module, __: Any, output: Any) -> None:
        ends["stop"].append(output.clone() if isinstance(output, Tensor) else output)

    handles = []
    if start is not None:
        handles.append(_module(network, start).register_forward_pre_hook(enter))
    if stop is not None:
        handles.append(_module(network, stop).register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _module(network: nn.Module, path: str) -> nn.Module:
    try:
        return network.get_submodule(path)
    except AttributeError:
        raise ValueError(f"Expected the path of a module of the network, got {path!r}.") from None


def _leaf(value: Any, place: str) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"Expected a floating-point tensor as {place}, got {kind}.")
    return value.detach().requires_grad_()


def _connected(entering: Tensor, leaving: Tensor) -> bool:
    if not leaving.requires_grad:
        return False
    found = torch.autograd.grad(leaving.sum(), entering, retain_graph=True, allow_unused=True)
    return found[0] is not None


def _mixes(stack: _Stack) -> bool:
    """Whether the gradient of some example's output by another's input is not zero; a random direction shows it."""
    for example in range(stack.batch if stack.batch > 1 else 0):
        cotangent = torch.zeros(1, stack.batch, stack.outputs, dtype=stack.leaving.dtype, device=stack.leaving.device)
        cotangent[0, example].normal_()
        gradient = stack.backward(cotangent)[0]
        gradient[example] = 0
        if gradient.any():
            return True
    return False


def _check_size(stack: _Stack, mixes: bool) -> None:
    one = stack.outputs * stack.entering[0].numel()
    elements = one * stack.batch ** (2 if mixes else 1)
    if elements > _LARGEST:
        raise ValueError(
            f"The Jacobians would have {elements:.2g} elements, more than {_LARGEST:.2g}; give fewer examples or "
            "smaller inputs, or a start or stop where there are fewer features."
        )


def _per_example(stack: _Stack, chunk: int) -> Tensor:
    """(B, out, in): one output of all examples at a time, since each reaches only its own input."""
    rows = []
    for first in range(0, stack.outputs, chunk):
        units = torch.arange(first, min(first + chunk, stack.outputs), device=stack.leaving.device)
        cotangents = torch.zeros(
            len(units), stack.batch, stack.outputs, dtype=stack.leaving.dtype, device=stack.leaving.device
        )
        cotangents.scatter_(2, units.view(-1, 1, 1).expand(-1, stack.batch, 1), 1)
        rows.append(stack.backward(cotangents))
    return torch.cat(rows).transpose(0, 1)


def _of_batch(stack: _Stack, chunk: int) -> Tensor:
    """(1, B·out, B·in)."""
    rows, total = [], stack.batch * stack.outputs
    for first in range(0, total, chunk):
        units = torch.arange(first, min(first + chunk, total), device=stack.leaving.device)
        cotangents = torch.zeros(len(units), total, dtype=stack.leaving.dtype, device=stack.leaving.device)
        cotangents.scatter_(1, units.unsqueeze(1), 1)
        gradients = stack.backward(cotangents.view(-1, stack.batch, stack.outputs))
        rows.append(gradients.flatten(1))
    return torch.cat(rows).unsqueeze(0)


def _table(values: Tensor, examples: int) -> pd.DataFrame:
    spectra, size = values.shape
    flat = values.cpu().flatten().numpy()
    columns = {
        "spectrum": np.repeat(np.arange(spectra), size),
        "examples": examples,
        "index": np.tile(np.arange(size), spectra),
        "singular_value": flat,
        "squared": flat**2,
    }
    return pd.DataFrame(columns)
