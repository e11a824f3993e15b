"""An optimizer's steps taken during the backward pass, so that the gradients are never all there at once."""

from __future__ import annotations

from contextlib import ExitStack

from torch import Tensor
from torch.optim import LBFGS, Optimizer

# Of the memory of all parameters, what gradients take before a step: each step looks at every parameter.
SHARE = 1 / 16


def step_in_backward(optimizer: Optimizer) -> ExitStack:
    """Let an optimizer update parameters, and free their gradients, while the backward pass goes on.

    Gradients then take a sixteenth of the memory of the parameters, or that of the largest of them (Lv et al. 2023,
    LOMO). The loop stays as it is, with `zero_grad` before the backward pass and `step` after it, which updates the
    rest; weights and the optimizer's state become the same to the last bit.

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
    parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    limit, pending = SHARE * sum(one.nbytes for one in parameters), 0

    def update(parameter: Tensor) -> None:
        nonlocal pending
        pending += parameter.nbytes
        if pending >= limit:
            pending = 0
            # Both pass over parameters without a gradient.
            optimizer.step()
            optimizer.zero_grad()

    hooks = ExitStack()
    for parameter in parameters:
        hooks.callback(parameter.register_post_accumulate_grad_hook(update).remove)
    return hooks
