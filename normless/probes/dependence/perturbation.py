"""Changes of inputs and weights that reveal dependence between examples."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

from normless.probes.dependence.reruns import Arguments, tensors_of

_SEED = 0


def batch_size(arguments: Arguments) -> int:
    """The number of examples: the length of axis 0 of the first tensor that has one.

    Raises:
        ValueError: it is below 2, or no tensor has an axis.
    """
    lengths = [tensor.shape[0] for tensor in tensors_of(arguments) if tensor.dim()]
    if not lengths or lengths[0] < 2:
        problem = f"that has length {lengths[0]}" if lengths else "there is no tensor with an axis"
        raise ValueError(
            "Whether examples mix is measured on a batch of at least two, along axis 0 of the first tensor; "
            f"{problem}. Give more examples."
        )
    return lengths[0]


def groups(batch: int) -> Iterator[frozenset[int]]:
    """2⌈log₂ B⌉ sets of examples, of which for all i ≠ j one contains i and not j."""
    for bit in range((batch - 1).bit_length()):
        for value in (0, 1):
            yield frozenset(example for example in range(batch) if example >> bit & 1 == value)


def redrawn(arguments: Arguments, batch: int, group: frozenset[int]) -> Arguments:
    """The arguments with every element of a group's examples replaced by another value of the same tensor.

    Raises:
        ValueError: no tensor has two values.
    """
    generator = torch.Generator().manual_seed(_SEED)
    varies = False

    def redraw(tensor: Tensor) -> Tensor:
        nonlocal varies
        if tensor.is_complex():
            return torch.view_as_complex(redraw(torch.view_as_real(tensor)))
        if not tensor.dim() or tensor.shape[0] != batch:
            return tensor
        values, index = torch.unique(tensor, return_inverse=True)
        if len(values) < 2:
            return tensor
        varies = True
        # Without the extremes, so that a maximum over the batch changes.
        excluded = 1 if len(values) > 3 else 0
        inner = values[excluded : len(values) - excluded]
        rows = sorted(group)
        own = (index[rows] - excluded).clamp(0, len(inner) - 1)
        step = torch.randint(1, len(inner), own.shape, generator=generator).to(tensor.device)
        others = tensor.clone()
        others[rows] = inner[(own + step) % len(inner)]
        return others

    result = arguments.map(redraw)
    if not varies:
        raise ValueError(
            "Examples are changed to other values of the same input, and every input has one value only. "
            "Give inputs that vary, such as torch.randn."
        )
    return result


def without_zeros(model: nn.Module) -> nn.Module:
    """A copy with small random numbers in place of zeros among trainable weights, as in multipliers."""
    copied = deepcopy(model)
    generator = torch.Generator().manual_seed(_SEED)
    for parameter in copied.parameters():
        if parameter.requires_grad:
            small = 0.1 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(torch.where(parameter == 0, small.to(parameter), parameter))
    return copied
