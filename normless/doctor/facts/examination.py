"""The data that the checks of a diagnosis read: the arguments, one recorded pass, and outputs in evaluation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from normless._internal.state import quiet, unfused
from normless.doctor.facts.flow import Call, Flow, Seen, Tracer, tensors
from normless.doctor.facts.guessing import lowest_of_constants, lowest_of_outputs
from normless.doctor.facts.held import trained_parameters
from normless.doctor.facts.symmetry import has_equal_rows
from normless.doctor.facts.tape import Event, LossCall, Tape, active_rate, recorded
from normless.doctor.findings import Budget, Finding
from normless.errors import InputsError
from normless.probes import (
    Loss,
    Setting,
    attach_hooks,
    compute_output,
    logits_of,
    loss_of,
    make_watchers,
    preserve_state,
)
from normless.residual import ResidualBlock, ResidualMap, Unresolved

# Operations in place whose names do not end with one underscore.
IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}


class PassError(InputsError):
    """A network does not run on its inputs; `place` is the module that was running."""

    def __init__(self, message: str, place: str) -> None:
        super().__init__(f"{message} (in {place})" if place else message)
        self.place = place


class BackwardError(InputsError):
    """The backward pass raises an error; `call` wrote into a tensor that it reads, if it is known."""

    def __init__(self, message: str, call: Call | None) -> None:
        super().__init__(f"The backward pass raises an error: {message}")
        self.message, self.call = message, call


@dataclass(frozen=True)
class Passed:
    """A forward and backward pass through a network in training mode.

    Attributes:
        joins: the number of concatenations before the loss.
        rounding: the size of a loss whose summands cancel, by rounding alone.
        output: the return value of the network.
        logits: the logits in the output.
        flow: the calls of the network and of the loss.
        losses: the calls of losses of torch.
        loss: the loss; NaN if it could not be computed.
        error: the error of the loss, if it does not take the targets.
        entered: qualified names of the modules that ran.
        moved: names of the buffers that the pass changed.
        gradients: the norm of each parameter's gradient, by name; None if it has no gradient.
        alike: names of the weights whose rows have equal values and equal gradients.
        tables: the tables of the probes `signal`, `backward` and `logits`; without a map they have no rows of blocks.
        missed: blocks that the probes could not observe.
    """

    events: list[Event]
    joins: int
    output: Any
    logits: Tensor
    flow: Flow
    losses: list[LossCall] = field(default_factory=list)
    loss: float = nan
    error: Exception | None = None
    entered: frozenset[str] = frozenset()
    moved: frozenset[str] = frozenset()
    gradients: Mapping[str, float | None] = field(default_factory=dict)
    alike: tuple[str, ...] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    missed: tuple[Unresolved, ...] = ()
    rounding: float = 0.0


@dataclass
class Examination:
    """The arguments of a diagnosis and the recorded pass.

    Attributes:
        map: the residual map, or None.
        unmapped: the reason if there is no map.
        trials: the trials of the unchanged network at its own rate.
        control: a tuple with the best trial of the unchanged network over several rates (or None), once it was made.
        found: the findings so far.
        fine, faulty: the names of checks so far without and with findings.
        influence: the size of the gradient with respect to the inputs, by their numbers, once it was calculated.
        dropped: places and rates of the dropout in the pass in evaluation mode, once this pass was made.
        budget: the steps on copies that may still be made.
    """

    model: nn.Module
    inputs: Any
    targets: Any
    loss: Loss
    optimizer: Optimizer | None
    map: ResidualMap | None = None
    unmapped: str = ""
    trials: list[Any] = field(default_factory=list)
    control: Any = None
    found: list[Finding] = field(default_factory=list)
    fine: set[str] = field(default_factory=set)
    faulty: set[str] = field(default_factory=set)
    influence: Mapping[int, Tensor] = field(default_factory=dict)
    dropped: Mapping[str, float] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)

    def knows(self, kind: str) -> bool:
        """Whether an earlier check has a finding of this kind."""
        return any(known.kind == kind for known in self.found)

    def changed(self, **changes: Any) -> Examination:
        """Return the examination of this network with another batch or loss, of which nothing is known yet."""
        fresh: dict[str, Any] = {
            "trials": [],
            "control": None,
            "found": [],
            "fine": set(),
            "faulty": set(),
            "dropped": {},
        }
        return replace(self, **fresh | changes)

    def of_batch(self, inputs: Any, targets: Any, output: Any) -> Examination | None:
        """Return the examination of another batch with its output and this recorded pass; None without logits."""
        logits = logits_of(output)
        if logits is None:
            return None
        part = self.changed(inputs=inputs, targets=targets)
        part.__dict__["passed"] = replace(self.passed, output=output, logits=logits)
        return part

    @cached_property
    def passed(self) -> Passed:
        """The recorded pass, made on first access."""
        return pass_through(self.model, self.inputs, self.targets, self.loss, self.map)

    @cached_property
    def evaluated(self) -> Tensor:
        """The logits in evaluation mode, in float64."""
        logits = logits_of(self._evaluated)
        if logits is None:
            raise ValueError(f"The output of this {type(self.model).__name__} holds no tensor to take as logits.")
        return logits.double()

    @cached_property
    def _evaluated(self) -> Any:
        """The return value of the network in evaluation mode."""
        dropped: dict[str, float] = {}

        def note(seen: Seen) -> None:
            if (rate := active_rate(seen)) > 0:
                dropped[seen.call.place] = max(rate, dropped.get(seen.call.place, 0.0))

        follows = Tracer(note).follow(self.model, self.inputs)
        # The fused path of torch's transformer layers takes masks of floats for masks of booleans.
        with preserve_state(self.model, training=False), unfused(), follows:
            output = _without_history(self.model, self.inputs)
        self.dropped = dropped
        return output

    def evaluate(self, inputs: Any, model: nn.Module | None = None) -> Tensor:
        """Return the logits for given inputs in evaluation mode, in float64; of another network if given."""
        model = self.model if model is None else model
        with preserve_state(model, training=False), unfused():
            logits = logits_of(_without_history(model, inputs))
        if logits is None:
            raise InputsError(f"The output of this {type(model).__name__} holds no tensor to take as logits.")
        return logits.double()

    @cached_property
    def evaluated_loss(self) -> float | None:
        """The loss of the batch in evaluation mode; None if it does not take the output in that mode."""
        with suppress(InputsError, ValueError), quiet(), torch.no_grad():
            return float(loss_of(self.loss, self._evaluated, self.inputs, self.targets))
        return None

    def loss_at(self, logits: Tensor) -> Tensor:
        """Return the loss of the batch with other logits in the output of the network."""
        own = self.passed.logits

        def shown(value: Any) -> Any:
            is_pairs = isinstance(value, Tensor) and value.is_complex() and (*value.shape, 2) == own.shape
            return logits if value is own else torch.view_as_complex(logits.contiguous()) if is_pairs else value

        output = tree_map(shown, self.passed.output)
        with quiet():
            return loss_of(self.loss, output, self.inputs, self.targets)

    def is_divisible(self, count: int) -> bool:
        """Whether a few of `count` rows of the inputs may be examples that run without the others.

        Integers beside other inputs may be numbers of rows. Out of range they raise an error on the CPU only; on a
        device they end the process.
        """
        given = tensors(self.inputs)
        has_rows = all(tensor.dim() and len(tensor) == count for tensor in given)
        is_safe = len(given) == 1 or all(t.is_floating_point() or t.device.type == "cpu" for t in given)
        return bool(given) and has_rows and is_safe and count not in self.passed.logits.shape[1:]

    @cached_property
    def guessing(self) -> float:
        """The lowest loss of outputs that are the same for all examples; NaN if unknown."""
        return lowest_of_constants(self._loss_within, self.passed.logits, self.targets)

    @cached_property
    def lowest(self) -> float:
        """The lowest loss of any outputs that descent from those of the network finds; -inf if there are too many."""
        return lowest_of_outputs(self._loss_within, self.passed.logits)

    @property
    def _loss_within(self) -> Callable[[Tensor], Tensor]:
        """The loss of the batch for logits that are normalized first, if the network returns (log-)probabilities."""
        outputs = self.passed.logits.detach().float()
        for axis in (-1, 1) if outputs.dim() > 1 else ():
            if outputs.shape[axis] < 2:
                continue
            if _is_near(outputs.logsumexp(axis), 0.0):
                return lambda logits: self.loss_at(logits.log_softmax(axis))
            if float(outputs.min()) >= 0 and _is_near(outputs.sum(axis), 1.0):
                return lambda logits: self.loss_at(logits.softmax(axis))
        return self.loss_at

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that require gradients."""
        return [*trained_parameters(self.model).values()]

    @property
    def depth(self) -> int:
        """The number of outermost residual blocks."""
        return len(self.blocks)

    @property
    def blocks(self) -> tuple[ResidualBlock, ...]:
        """The outermost residual blocks."""
        return () if self.map is None else self.map.blocks

    @property
    def classifier(self) -> str | None:
        """The qualified name of the classifier, or None."""
        return None if self.map is None else self.map.classifier

    @property
    def norms_placed(self) -> str:
        """`post` if norms follow residual sums, `pre` if branches begin with norms, else empty."""
        if any(layer.kind == "norm" for block in self.blocks for layer in block.after_sum):
            return "post"
        return (
            "pre" if any(layer.kind == "norm" for block in self.blocks for layer in block.branch_layers[:1]) else ""
        )

    def observed(self, probe: str) -> pd.DataFrame:
        """Return the rows of a probe for the blocks with a measured sum; NaN in them is a measured value."""
        table = self.passed.tables[probe]
        return table[~table["name"].isin([item.path for item in self.passed.missed])]


def _is_near(values: Tensor, number: float) -> bool:
    return bool(((values - number).abs() < 1e-3).all())


def pass_through(model: nn.Module, inputs: Any, targets: Any, loss: Loss, mapped: ResidualMap | None) -> Passed:
    """Run a network forward and backward on a batch in training mode, and restore its state."""
    watchers = make_watchers(("signal", "backward", "logits"))
    setting = Setting(model, mapped or ResidualMap(()), targets)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with preserve_state(model, training=True), torch.enable_grad(), quiet():
        with recorded(model, inputs, targets) as tape:
            tape.leave_out(*watchers.values())
            with attach_hooks(setting, list(watchers.values())):
                output = _output(model, inputs, tape)
            logits = logits_of(output)
            if logits is None:
                raise ValueError(f"The output of this {type(model).__name__} holds no tensor to take as logits.")
            with tape.paused():
                moved, entered = _changed(model, buffers), frozenset(tape.entered)
            passed = Passed(
                tape.events, tape.joins, output, logits, tape.flow, tape.losses, entered=entered, moved=moved
            )
            try:
                _refuse_on_cpu(loss, output, inputs, targets)
                with tape.of_loss():
                    value = loss_of(loss, output, inputs, targets)
            except InputsError as error:
                cause = error.__cause__
                return replace(passed, error=cause if isinstance(cause, Exception) else error)
        if value.requires_grad:
            _backward(value, tape.flow)
        gradients = {
            name: None if parameter.grad is None else float(parameter.grad.to_dense().double().norm())
            for name, parameter in model.named_parameters()
        }
        alike = tuple(name for name, parameter in model.named_parameters() if has_equal_rows(parameter))
    tables = {name: watcher.table() for name, watcher in watchers.items()}
    has_blocks = mapped is not None and mapped.depth > 0
    missed = dict.fromkeys(item for watcher in watchers.values() if has_blocks for item in watcher.missed)
    found: dict[str, Any] = {"gradients": gradients, "alike": alike, "tables": tables, "missed": tuple(missed)}
    return replace(passed, loss=float(value.detach()), rounding=tape.rounding, **found)


def _output(model: nn.Module, inputs: Any, tape: Tape) -> Any:
    """Return the output of a network; the error of a pass that fails names the module."""
    try:
        return compute_output(model, inputs)
    except InputsError as error:
        raise PassError(str(error), tape.failed) from error.__cause__


def _without_history(model: nn.Module, inputs: Any) -> Any:
    """Return the output of a network; gradients are recorded only if the network needs them to compute its output."""
    try:
        with torch.no_grad():
            return compute_output(model, inputs)
    except InputsError:
        with torch.enable_grad():
            output = compute_output(model, inputs)
    return tree_map(lambda value: value.detach() if isinstance(value, Tensor) else value, output)


def _backward(value: Tensor, flow: Flow) -> None:
    """Run the backward pass; its error names the last write into a tensor of the shape in the message."""
    try:
        value.backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        shape = re.search(r"Tensor \[([\d, ]*)\]\]", str(error))
        written = [
            call
            for call in flow.calls
            if shape and (call.name.endswith("_") != call.name.endswith("__") or call.name in IN_PLACE)
            if list(call.reads[0][1]) == [int(size) for size in shape[1].split(",") if size]
        ]
        raise BackwardError(
            str(error).split(", is at version")[0].strip("."), written[-1] if written else None
        ) from error


def _changed(model: nn.Module, before: Mapping[str, Tensor]) -> frozenset[str]:
    now = dict(model.named_buffers())
    return frozenset(name for name, buffer in before.items() if name in now and not torch.equal(buffer, now[name]))


def _refuse_on_cpu(loss: Loss, output: Any, inputs: Any, targets: Any) -> None:
    """Raise the error of a loss that does not take its targets before it runs on a device and ends the process.

    On the CPU an index out of range raises an error. A loss with tensors of its own may not run on the CPU.
    """
    given = tree_map(
        lambda value: value.detach().cpu() if isinstance(value, Tensor) else value, (output, inputs, targets)
    )
    if all(tensor.device.type == "cpu" for tensor in tensors((output, targets))):
        return
    try:
        loss_of(loss, *given)
    except InputsError as error:
        if "device" not in str(error):
            raise
