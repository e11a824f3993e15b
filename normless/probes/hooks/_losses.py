"""Call the loss of a network with the arguments that it takes, and check its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any

from torch import Tensor

from normless._internal.arguments import applied
from normless.errors import InputsError
from normless.probes.hooks._watcher import logits_of

Loss = Callable[[Any, Any], Tensor]
"""From what a network returns, or its logits, and targets, or the whole batch, to a scalar; see `loss_of`."""


_AS_INPUT = "a network that computes it from its targets gets them as an input, ((inputs, targets), targets)"


class LossValueError(InputsError):
    """A loss returned something else than one number in a tensor.

    Attributes:
        came: what it returned.
        way: what to do.
        is_tensor: whether that was a tensor.
    """

    def __init__(self, came: str, way: str, *, is_tensor: bool = False) -> None:
        super().__init__(f"Expected the loss to return one number in a tensor, got {came}. {way}.")
        self.came, self.way, self.is_tensor = came, way, is_tensor


def loss_of(loss: Loss, output: Any, inputs: Any, targets: Any) -> Tensor:
    """Return the loss of a network's output, called with the first arguments that it takes.

    The first argument is what the network returned, or else the logits in it, which is what losses of torch always
    get; the second is the targets, or else the whole batch (inputs, targets). A loss whose second argument is called
    `batch` gets the batch.

    Raises:
        LossValueError: the loss does not return one number in a tensor.
        InputsError: the loss takes none of these; the cause is the error of the first call.
    """
    logits = logits_of(output)
    outputs = [logits] if _is_of_torch(loss) or output is logits else [output, logits]
    seconds = [(inputs, targets)] if _takes_batch(loss) else [targets, (inputs, targets)]
    refused: InputsError | None = None
    for second in seconds:
        for first in outputs:
            if first is None:
                continue
            try:
                return _value_of(applied(loss, first, second))
            except InputsError as error:
                if isinstance(error, LossValueError) and not error.is_tensor:
                    raise
                refused = refused or error
    raise refused or ValueError("The output of this network holds no tensor to take as logits.")


def own_loss(output: Any, _: Any = None) -> Tensor:
    """Return the loss that a network computes itself: the `loss` of its output, or an output of one number."""
    held = _named_loss(output)
    if held is None and isinstance(output, Tensor) and output.numel() == 1:
        held = output
    if held is None:
        raise ValueError("Gradients of a loss are measured, so targets are needed: pass (inputs, targets).")
    return held


def require_gradient(value: Tensor) -> None:
    """Raise a LossValueError for a loss without a gradient."""
    if not value.requires_grad:
        kind = str(value.dtype).removeprefix("torch.")
        raise LossValueError(
            f"a tensor of type {kind} without a gradient",
            "Compute it from the outputs without detach(), item(), argmax, comparisons or no_grad",
        )


def _value_of(result: Any) -> Tensor:
    if isinstance(result, Tensor) and result.numel() == 1 and not result.is_complex():
        return result.reshape(())
    if isinstance(result, Tensor):
        way = "Take its real part or its size" if result.numel() == 1 else "Take its mean"
        kind = "complex " if result.is_complex() else ""
        raise LossValueError(f"a {kind}tensor of shape {tuple(result.shape)}", way, is_tensor=True)
    came, way = f"a {type(result).__name__}", "Return a tensor with its history"
    if result is None:
        came, way = "None", f"Return the loss; {_AS_INPUT}"
    elif isinstance(result, Mapping):
        came, way = f"{came} of {', '.join(map(str, result))}", "Return one of its values"
    elif isinstance(result, (tuple, list)):
        came = f"{came} of {', '.join(type(value).__name__ for value in result)}"
        way = "Return one of them, or their sum"
    raise LossValueError(came, way)


def _named_loss(value: Any) -> Tensor | None:
    held = value.get("loss") if isinstance(value, Mapping) else getattr(value, "loss", None)
    return held if isinstance(held, Tensor) else None


def _is_of_torch(loss: Loss) -> bool:
    """Whether a loss is a function or module of torch, which reads one tensor."""
    function = getattr(loss, "func", loss)
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.partition(".")[0] == "torch"


def _takes_batch(loss: Loss) -> bool:
    with suppress(TypeError, ValueError):
        return [*signature(loss).parameters][1:2] == ["batch"]
    return False
