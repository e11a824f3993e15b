"""Call the loss of a network with the arguments that it takes, and check its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any

from torch import Tensor

from normless._internal.arguments import applied
from normless.errors import InputsError
from normless.probes.hooks._watcher import first_tensor, logits_of

Loss = Callable[[Any, Any], Tensor]
"""From what a network returns, or its logits, and targets, or the whole batch, to a scalar; see `loss_of`."""


def loss_of(loss: Loss, output: Any, inputs: Any, targets: Any) -> Tensor:
    """Return the loss of a network's output, called with the first arguments that it takes.

    The first argument is what the network returned, or else the logits in it, which is what losses of torch always
    get; the second is the targets, or else the whole batch (inputs, targets). A loss whose second argument is called
    `batch` gets the batch. Of what a loss returns its `loss` counts, or else the first tensor.

    Raises:
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


def _value_of(result: Any) -> Tensor:
    value = result if isinstance(result, Tensor) else _named_loss(result)
    value = first_tensor(result) if value is None else value
    if value is None or value.numel() != 1:
        came = type(result).__name__ if value is None else f"a tensor of shape {tuple(value.shape)}"
        raise InputsError(f"Expected the loss to return one number, got {came}. Take its mean.")
    return value.reshape(())


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
