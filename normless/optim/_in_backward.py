"""Optimizer steps during the backward pass, so that only some of the gradients exist at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from contextlib import ExitStack

from torch import Tensor
from torch.optim import LBFGS, Optimizer

# The memory of waiting gradients at which a step is taken, as a share of the memory of all parameters.
SHARE = 1 / 64


def step_in_backward(optimizer: Optimizer) -> ExitStack:
    """Let an optimizer update parameters and free their gradients during the backward pass.

    Gradients then take 1/64 of the memory of the parameters, or that of the largest parameter (Lv et al. 2023, LOMO).
    The training loop does not change: `zero_grad` before the backward pass, and `step` after it, which updates the
    remaining parameters. Weights and the state of the optimizer are the same to the last bit.

    It does not work with code that reads or accumulates gradients before the step: clipping, loss scaling, several
    backward passes or processes per step, or checkpoints with `use_reentrant=True` that share a parameter.

    Returns:
        A stack of hooks; its `close()` ends the updates, as does the end of its `with` block.

    Raises:
        TypeError: the argument is not an optimizer.
        ValueError: a step of the optimizer needs all gradients.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"Expected an optimizer, such as torch.optim.SGD(…), got an object of type {type(optimizer).__name__}."
        )
    if isinstance(optimizer, LBFGS):
        raise ValueError("A step of LBFGS needs all gradients at once; take an optimizer such as SGD or AdamW.")
    # Groups are identified by position, since `load_state_dict` makes new groups.
    positions = {
        parameter: position
        for position, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if parameter.requires_grad
    }
    limit = SHARE * sum(parameter.nbytes for parameter in positions)
    # Parameters left over from an earlier step have a gradient of None, which a step ignores.
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
    """Take a step on some of the parameters only; a step that loops over thousands of others would be slow."""
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
