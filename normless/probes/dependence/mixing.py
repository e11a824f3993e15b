"""Whether examples of a batch influence each other's outputs, and through which modules."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from normless.arguments import forward_arguments
from normless.probes.dependence.differences import (
    changed,
    has_example_axis,
    largest_difference,
    locate_change,
    noise_of,
)
from normless.probes.dependence.influence import Pass, Recorder, Tracker
from normless.probes.dependence.reruns import (
    Arguments,
    batch_size,
    groups,
    redrawn,
    reproducible_kernels,
    run_copy,
    tensors_of,
    without_zeros,
)
from normless.residual.classify import kind_of

Change = tuple[frozenset[int], Arguments]
"""A group of examples, and arguments with other values of them."""

_REPEATABLE = 1e-3
_ROUNDING = 1e-12
_CLEARLY = ""
_FAINTLY = ", by so little that it may be rounding"
_MOVING = "puts examples in the places of others"


@dataclass(frozen=True)
class MixingModule:
    """A module through which examples influence each other, by its qualified name, and how it does."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'the network itself'}: {self.reason}"


@dataclass(frozen=True)
class ExampleMixing:
    """The result of `mixes_examples`; true if an example's output depends on another example.

    Attributes:
        modules: those that cause it, in execution order.
        state: modules with a buffer that depends on the examples after the pass, such as running statistics: an input
            of later passes, not an output of this one.
    """

    modules: tuple[MixingModule, ...] = ()
    state: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.modules)

    def __str__(self) -> str:
        lines = ["No example's output depends on another example of the batch."]
        if self.modules:
            count = f"{len(self.modules)} module{'s' * (len(self.modules) > 1)}"
            lines = [f"An example's output depends on other examples of the batch, through {count}:"]
            lines += [f"  {module}" for module in self.modules]
        if self.state:
            lines.append(f"Buffers that depend on the examples: {', '.join(self.state)}.")
        return "\n".join(lines)


def mixes_examples(model: nn.Module, *inputs: Any, example_inputs: Any = None, **kwargs: Any) -> ExampleMixing:
    """Measure whether any example's output depends on another example of the batch, and which modules cause it.

    Example j depends on example i if ∃ x, x' that differ in x_i only: f(x)_j ≠ f(x')_j. The network runs twice on
    the inputs, in its own mode and precision, and once for each of 2⌈log₂ B⌉ groups of examples with every element of
    the group's inputs replaced by another value of the same tensor; for every pair (i, j) a group contains i and not
    j. All passes draw the same random numbers, so dropout is no influence.

    Outputs are compared bit by bit; kernels that are not repeatable may differ by 8 times the difference of the first
    two passes. A difference that may be rounding must exceed 8·10⁻¹² of the largest value in double precision (sums
    of other lengths, as over the tokens of an expert, are rounded differently); if the network only runs in its own
    precision, it counts and the reason says so. Examples are on axis 0 of the inputs, and of outputs of that length;
    other outputs are searched for an axis that holds them. Outputs without such an axis (a loss) are ignored.

    The modules named are the innermost ones that propagate a change to other examples; the change is undone at their
    output, so that each is judged by itself. The network's output may not depend on all of them.

    The passes run on copies; the model and the random states are left as they were. Trainable weights that are zero
    are replaced by small numbers in the copies, since a zero multiplier hides its branch until the first step. Not
    detected are dependences that need other inputs to show, and memory between passes outside the buffers.

    Args:
        model: the network, in training or in evaluation mode.
        inputs: arguments of forward; B ≥ 2 is the length of axis 0 of the first tensor that has one. Tensors of
            another length there are shared by the examples. A few examples suffice; memory for the activations of
            one pass is needed twice.
        example_inputs: replaces `inputs` and `kwargs`: a tensor, a tuple of positional or a dictionary of keyword
            arguments.
        kwargs: further arguments by name.

    Raises:
        ValueError: there are fewer than two examples, the inputs have one value only, no output belongs to an
            example, or two passes on the same inputs differ.
    """
    model = getattr(model, "_orig_mod", model)  # A compiled network hides its modules in fused code.
    arguments = Arguments(*forward_arguments(inputs, kwargs, example_inputs))
    batch = batch_size(arguments)
    with reproducible_kernels(model):
        copied = without_zeros(model)
        changes = [(group, redrawn(arguments, batch, group)) for group in groups(batch)]
        output, after = run_copy(copied, arguments)
        expected = _with_examples(output, batch)
        repeated, again = run_copy(copied, arguments)
        noise = _noise(expected, _with_examples(repeated, batch), model)
        unsteady = _different_buffers(after, again)
        leaking: list[Change] = []
        state: set[str] = set()
        for group, others in changes:
            output, changed_copy = run_copy(copied, others)
            state |= _different_buffers(after, changed_copy) - unsteady
            if _reaches_others(expected, _with_examples(output, batch), noise, batch, group):
                leaking.append((group, others))
        modules = _mixing_modules(copied, arguments, leaking, batch) if leaking else ()
    order = [name.rpartition(".")[0] for name, _ in model.named_buffers() if name in state]
    return ExampleMixing(modules, tuple(dict.fromkeys(order)))


def _mixing_modules(
    model: nn.Module, arguments: Arguments, leaking: list[Change], batch: int
) -> tuple[MixingModule, ...]:
    """The modules that propagate these changes to other examples; none if all of it is rounding."""
    how = _traced(model, arguments, leaking, batch, rounding=0.0)
    if _FAINTLY in how.values() and (precise := _in_double(model, arguments)) is not None:
        changes = [(group, others.map(_doubled)) for group, others in leaking]
        confirmed = _traced(precise, arguments.map(_doubled), changes, batch, _ROUNDING)
        how = {path: _CLEARLY if text == _FAINTLY else text for path, text in confirmed.items()}
    return tuple(MixingModule(path, _reason(model.get_submodule(path), text)) for path, text in how.items())


def _traced(
    model: nn.Module, arguments: Arguments, leaking: list[Change], batch: int, rounding: float
) -> dict[str, str]:
    """The modules that mix or move examples, in execution order, with a remark on each."""
    record = Pass(rounding)
    output, _ = run_copy(model, arguments, Recorder(record))
    repeated, _ = run_copy(model, arguments, Recorder(record))
    expected = _with_examples(output, batch)
    pairs = zip(expected, _with_examples(repeated, batch), strict=True)
    noise = [noise_of(*pair, rounding) for pair in pairs]
    how: dict[str, str] = {}
    for group, others in leaking:
        output, _ = run_copy(model, others)
        if not _reaches_others(expected, _with_examples(output, batch), noise, batch, group):
            continue
        tracker = Tracker(record, batch, group)
        output, _ = run_copy(model, others, tracker)
        if _reaches_others(expected, _with_examples(output, batch), noise, batch, group):
            for path in tracker.moving or [""]:
                how.setdefault(path, _MOVING if tracker.moving else _FAINTLY)
        for path, clearly in tracker.mixing.items():
            if clearly or how.get(path) != _CLEARLY:
                how[path] = _CLEARLY if clearly else _FAINTLY
    return {path: how[path] for path in dict.fromkeys(path for path, _, _ in record.values) if path in how}


def _in_double(model: nn.Module, arguments: Arguments) -> nn.Module | None:
    """A copy in double precision, or None if its forward code fails in it."""
    precise = deepcopy(model).double()
    try:
        run_copy(precise, arguments.map(_doubled))
    except Exception:  # Forward code may raise anything in an unexpected precision.
        return None
    return precise


def _doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _reason(module: nn.Module, how: str) -> str:
    kind = type(module).__name__
    if how == _MOVING:
        return f"{kind} {_MOVING}"
    if kind_of(module) == "norm":
        return f"{kind} normalizes by statistics of several examples{how}"
    where = "its own forward code" if any(module.children()) else "one output"
    return f"{kind} combines several examples in {where}{how}"


def _with_examples(output: Any, batch: int) -> list[Tensor]:
    """The tensors of an output with an axis for the examples."""
    tensors = [tensor for tensor in tensors_of(output) if has_example_axis(tensor, batch)]
    if not tensors:
        raise ValueError(
            f"No output belongs to an example: forward returns no tensor with an axis for the {batch} examples. "
            "Give the network without its loss."
        )
    return tensors


def _noise(expected: list[Tensor], repeated: list[Tensor], model: nn.Module) -> list[float]:
    """The largest difference of each output between two equal passes: 0 for deterministic kernels."""
    noise = []
    for value, again in zip(expected, repeated, strict=True):
        difference = largest_difference(value, again) if value.shape == again.shape else inf
        if difference and not difference <= _REPEATABLE * largest_difference(value, torch.zeros_like(value)):
            raise ValueError(
                f"Two passes of this {type(model).__name__} on the same inputs, from the same random state of torch, "
                f"numpy and Python, differ by {difference:.2g}. Make it draw its random numbers from one of these."
            )
        noise.append(difference)
    return noise


def _reaches_others(
    expected: list[Tensor], outputs: list[Tensor], noise: list[float], batch: int, group: frozenset[int]
) -> bool:
    """Whether the outputs of examples outside the group have changed."""
    if [value.shape for value in expected] != [value.shape for value in outputs]:
        return True
    others = [example for example in range(batch) if example not in group]
    for value, other, difference in zip(expected, outputs, noise, strict=True):
        change = changed(value, other, difference)
        if value.dim() and value.shape[0] == batch:
            if change[others].any():
                return True
        elif change.any():
            location = locate_change(change, batch, len(group), group)
            if location is None or not location.examples <= group:
                return True
    return False


def _different_buffers(model: nn.Module, other: nn.Module) -> set[str]:
    """Names of the buffers with different values in two copies of a network."""
    values = dict(other.named_buffers())
    return {
        name
        for name, buffer in model.named_buffers()
        if name not in values or values[name].shape != buffer.shape or changed(buffer, values[name]).any()
    }
