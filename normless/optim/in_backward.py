"""An optimizer's steps taken during the backward pass, so that the gradients are never all there at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from contextlib import ExitStack

from torch import Tensor
from torch.optim import LBFGS, Optimizer

# Of the memory of all parameters, what gradients take before a step.
SHARE = 1 / 64


def step_in_backward(optimizer: Optimizer) -> ExitStack:
    """Let an optimizer update parameters, and free their gradients, while the backward pass goes on.

    Gradients then take 1/64 of the memory of the parameters, or that of the largest of them (Lv et al. 2023, LOMO).
    The loop stays as it is, with `zero_grad` before the backward pass and `step` after it, which updates the rest;
    weights and the optimizer's state become the same to the last bit.

    Not for what reads or adds up gradients before the step: clipping, loss scaling, several backward passes or
    processes to a step, or checkpoints with `use_reentrant=True` that share a parameter.

    Returns what ends this by `close()`, or as a context manager.

    Raises:
        TypeError: it is no optimizer.
        ValueError: the optimizer's step needs all gradients.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"Expected an optimizer, such as torch.optim.SGD(…), got an object of type {type(optimizer).__name__}."
        )
    if isinstance(optimizer, LBFGS):
        raise ValueError("A step of LBFGS needs all gradients at once; take an optimizer such as SGD or AdamW.")
    # By position: `load_state_dict` makes new groups.
    positions = {
        parameter: position
        for position, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if parameter.requires_grad
    }
    limit = SHARE * sum(parameter.nbytes for parameter in positions)
    # Of an earlier step's rest, the gradients are None, which a step passes over.
    waiting: dict[Tensor, None] = {}
    size = 0

    def update(parameter: Tensor) -> None:
        nonlocal size
        size += 0 if parameter in waiting else parameter.nbytes
        waiting[parameter] = None
        if size >= limit:
            _step_with(optimizer, waiting, positions)
            waiting.clear()
            size = 0

    hooks = ExitStack()
    for parameter in positions:
        hooks.callback(parameter.register_post_accumulate_grad_hook(update).remove)
    return hooks


def _step_with(optimizer: Optimizer, parameters: Collection[Tensor], positions: dict[Tensor, int]) -> None:
    """A step that sees some of the parameters alone: to look at thousands of others takes longer than it does."""
    some = defaultdict(list)
    for parameter in parameters:
        some[positions[parameter]].append(parameter)
    whole = [group["params"] for group in optimizer.param_groups]
    try:
        for position, group in enumerate(optimizer.param_groups):
            group["params"] = some[position]
        optimizer.step()
    finally:
        for group, everything in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = everything
    for parameter in parameters:
        parameter.grad = None
