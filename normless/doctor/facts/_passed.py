"""A forward and backward pass through a network in training mode, recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from normless.doctor.facts._batches import size_of
from normless.doctor.facts._flow import PassFlow, TensorCall, is_in_place
from normless.doctor.facts._tape import EventTape, LayerEvent, LossCall, norm_of
from normless.doctor.facts._tracer import tensors
from normless.errors import InputsError
from normless.probes import Loss, Setting
from normless.probes._measure import make_watchers
from normless.probes.hooks._losses import loss_of
from normless.probes.hooks._observe import compute_output
from normless.probes.hooks._watcher import attach_hooks, logits_of
from normless.residual import ResidualMap, Unresolved
from normless.state import preserve_state, quiet

# Rows of a gradient count as equal if they differ by less than this share of its largest element.
EQUAL = 1e-3


class PassError(InputsError):
    """A network does not run on its inputs; `place` is the module that was running."""

    def __init__(self, message: str, place: str) -> None:
        super().__init__(f"{message} (in {place})" if place else message)
        self.place = place


class BackwardError(InputsError):
    """The backward pass raises an error; `call` wrote into a tensor that it reads, if it is known."""

    def __init__(self, message: str, call: TensorCall | None) -> None:
        super().__init__(f"The backward pass raises an error: {message}")
        self.message, self.call = message, call


@dataclass
class Passed:
    """A forward and backward pass through a network in training mode.

    Attributes:
        output: the return value of the network.
        logits: the logits in the output.
        flow: the calls of the network and of the loss.
        events: the calls of layers, activations and attentions.
        losses: the calls of losses of torch.
        entered: qualified names of the modules that ran.
        moved: names of the buffers that the pass changed.
        loss: the loss; NaN if it could not be computed.
        rounding: the size of a loss whose summands cancel, by rounding alone.
        error: the error of the loss, if it does not take the targets.
        gradients: the norm of each parameter's gradient, by name; None if it has no gradient.
        alike: names of the weights whose rows have equal values and equal gradients.
        tables: the tables of the probes `signal`, `backward` and `logits`; without a map they have no rows of blocks.
        missed: blocks that the probes could not observe.
    """

    output: Any
    logits: Tensor
    flow: PassFlow
    events: list[LayerEvent]
    losses: list[LossCall]
    entered: frozenset[str]
    moved: frozenset[str]
    loss: float = nan
    rounding: float = 0.0
    error: Exception | None = None
    gradients: Mapping[str, float | None] = field(default_factory=dict)
    alike: tuple[str, ...] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    missed: tuple[Unresolved, ...] = ()

    @property
    def reached(self) -> dict[str, float]:
        """The norms of the gradients of the parameters that have one."""
        return {name: norm for name, norm in self.gradients.items() if norm is not None}


def pass_through(model: nn.Module, inputs: Any, targets: Any, loss: Loss, mapped: ResidualMap | None) -> Passed:
    """Run a network forward and backward on a batch in training mode, and restore its state."""
    watchers = make_watchers(("signal", "backward", "logits"))
    hooked = [*map(EventTape.leave_out, watchers.values())]
    setting = Setting(model, mapped or ResidualMap(()), targets)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with preserve_state(model, training=True), torch.enable_grad(), quiet():
        tape = EventTape(size_of(inputs))
        with tape.follow(model, inputs, targets):
            with attach_hooks(setting, hooked):
                output = _output(model, inputs, tape)
            logits = require_logits(model, output)
            with tape.paused():
                now = dict(model.named_buffers())
                moved = {name for name, old in buffers.items() if name in now and not torch.equal(old, now[name])}
            passed = Passed(
                output, logits, tape.flow, tape.events, tape.losses, frozenset(tape.entered), frozenset(moved)
            )
            try:
                _refuse_on_cpu(loss, output, inputs, targets)
                with tape.of_loss():
                    value = loss_of(loss, output, inputs, targets)
            except InputsError as error:
                cause = error.__cause__
                passed.error = cause if isinstance(cause, Exception) else error
                return passed
        if value.requires_grad:
            _backward(value, tape.flow)
        passed.loss, passed.rounding = float(value.detach()), tape.rounding
        passed.gradients = {
            name: None if parameter.grad is None else norm_of(parameter.grad.to_dense())
            for name, parameter in model.named_parameters()
        }
        passed.alike = tuple(name for name, parameter in model.named_parameters() if has_equal_rows(parameter))
    passed.tables = {name: watcher.table() for name, watcher in watchers.items()}
    has_blocks = mapped is not None and mapped.depth > 0
    passed.missed = (*dict.fromkeys(item for one in watchers.values() if has_blocks for item in one.missed),)
    return passed


def require_logits(model: nn.Module, output: Any) -> Tensor:
    """Return the logits in the output of a network; ValueError if there are none."""
    if (logits := logits_of(output)) is None:
        raise ValueError(f"The output of this {type(model).__name__} holds no tensor to take as logits.")
    return logits


def _output(model: nn.Module, inputs: Any, tape: EventTape) -> Any:
    """Return the output of a network; the error of a pass that fails names the module."""
    try:
        return compute_output(model, inputs)
    except InputsError as error:
        raise PassError(str(error), tape.failed) from error.__cause__


def _backward(value: Tensor, flow: PassFlow) -> None:
    """Run the backward pass; its error names the last write into a tensor of the shape in the message."""
    try:
        value.backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        known = re.search(r"Tensor \[([\d, ]*)\]\]", str(error))
        shape = tuple(int(size) for size in known[1].split(",") if size) if known else None
        written = [call for call in flow.calls if is_in_place(call.name) and call.reads[0][1] == shape]
        message = str(error).split(", is at version")[0].strip(".")
        raise BackwardError(message, written[-1] if written else None) from error


def has_equal_rows(parameter: Tensor) -> bool:
    """Whether the units of a weight have equal values and equal gradients, so that every step keeps them equal."""
    gradient = parameter.grad
    if gradient is None or gradient.is_sparse or parameter.dim() < 2 or len(parameter) < 2 or parameter.is_complex():
        return False
    largest = float(gradient.abs().max())
    is_alike = bool((parameter == parameter[:1]).all()) and 0 < largest < inf
    return is_alike and float((gradient - gradient[:1]).abs().max()) <= EQUAL * largest


def _refuse_on_cpu(loss: Loss, output: Any, inputs: Any, targets: Any) -> None:
    """Raise the error of a loss that does not take its targets before it runs on a device and ends the process.

    On the CPU an index out of range raises an error. A loss with tensors of its own may not run on the CPU.
    """
    if all(tensor.device.type == "cpu" for tensor in tensors((output, targets))):
        return
    given = tree_map(
        lambda value: value.detach().cpu() if isinstance(value, Tensor) else value, (output, inputs, targets)
    )
    try:
        loss_of(loss, *given)
    except InputsError as error:
        if "device" not in str(error):
            raise
