"""Measure whether examples of a batch influence each other's outputs, and through which modules."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normless._internal.arguments import applied, forward_arguments, require_network
from normless._internal.calling import Call, with_call
from normless._internal.copying import copied
from normless._internal.html import html_table
from normless.errors import MissingValuesError
from normless.exclusive import exclusive
from normless.probes.dependence import _influence as influence
from normless.probes.dependence._influence import Hook, Reference, ReferencePass, Tracker, map_tensors, tensors_of
from normless.residual._classify import kind_of
from normless.state import preserve_random_state, unfused

CallArguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and keyword arguments of a network's forward."""
Changes = dict[frozenset[int], CallArguments]
"""Maps a group of examples to arguments with other values for these examples."""

_SEED = 0
_REPEATABLE = 1e-3
_ROUNDING = 1e-12
_FAINTLY = ", by so little that it may be rounding"
_MOVING = "puts examples in the places of others"


@dataclass(frozen=True)
class MixingModule:
    """A module through which examples influence each other: its qualified name and the way it does."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'the network itself'}: {self.reason}"


@dataclass(frozen=True)
class ExampleMixing:
    """The result of `mixes_examples`; true if an example's output depends on another example.

    Attributes:
        modules: the modules that cause it, in execution order.
        state: modules with a buffer that depends on the examples after the pass, such as running statistics. Such a
            buffer influences later passes, not this one.
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

    def _repr_html_(self) -> str:
        rows = [(module.path or "the network itself", module.reason) for module in self.modules]
        rows += [(path, "its buffers depend on the examples") for path in self.state]
        return html_table(str(self).partition("\n")[0], ("module", "how"), rows)


@exclusive
@with_call
def mixes_examples(
    model: nn.Module, *inputs: Any, example_inputs: Any = None, call: Call | None = None, **kwargs: Any
) -> ExampleMixing:
    """Measure whether any example's output depends on another example of the batch, and which modules cause it.

    Example j depends on example i if ∃ x, x' that differ in x_i only: f(x)_j ≠ f(x')_j. The network runs twice on
    the inputs, in its own mode and precision, and once for each of 2⌈log₂ B⌉ groups of examples with every element of
    the group's inputs replaced by another value of the same tensor; for every pair (i, j) a group contains i and not
    j. All passes draw the same random numbers, so dropout has no influence.

    Outputs are compared bit by bit; kernels that are not repeatable may differ by 8 times the difference of the first
    two passes. A difference that may be rounding must exceed 8·10⁻¹² of the largest value in double precision; if the
    network only runs in its own precision, it counts and the reason says so. Outputs with another length than B on
    axis 0 are searched for an axis that holds the examples, and ignored if there is none (a loss).

    The modules named are the innermost modules that propagate a change to other examples, each judged alone: the
    network's output may not depend on all of them. In the copies that are run, trainable weights that are zero are
    replaced by small numbers, since a zero multiplier hides its branch until the first step. Not detected are
    dependences that need other inputs to show, and memory between passes outside the buffers.

    Args:
        model: the network, in training or in evaluation mode; it is unchanged.
        inputs: arguments of forward; B ≥ 2 is the length of axis 0 of the first tensor that has one. Tensors of
            another length there are shared by the examples. A few examples suffice; the activations of a pass are
            stored.
        kwargs, example_inputs, call: as in `residual_map`.

    Raises:
        ValueError: there are fewer than two examples, the inputs have one value only, no output belongs to an
            example, or two passes on the same inputs differ.
    """
    model = getattr(model, "_orig_mod", model)  # A compiled network hides its modules in fused code.
    require_network(model)
    arguments = forward_arguments(inputs, kwargs, example_inputs)
    batch = _batch_size(arguments)
    cudnn = torch.backends.cudnn
    kernels = cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=cudnn.allow_tf32)
    # The fused encoder layer hides its modules.
    with unfused(), torch.no_grad(), preserve_random_state(model), kernels:
        network = without_zeros(model)
        changes: Changes = {}
        # 2⌈log₂ B⌉ groups; for all i ≠ j, one of them contains i and not j.
        for bit, value in product(range((batch - 1).bit_length()), (0, 1)):
            group = frozenset(example for example in range(batch) if example >> bit & 1 == value)
            changes[group] = _redrawn(arguments, batch, group)
        how, state = _traced(network, arguments, changes, batch)
        if _FAINTLY in how.values():
            arguments, changes = map_tensors(
                lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, (arguments, changes)
            )
            # Forward code may raise anything in an unexpected precision.
            with suppress(Exception):
                how, state = _traced(network.double(), arguments, changes, batch, _ROUNDING)
    modules = tuple(MixingModule(path, _reason(model.get_submodule(path), text)) for path, text in how.items())
    owners = dict.fromkeys(name.rpartition(".")[0] for name, _ in model.named_buffers() if name in state)
    return ExampleMixing(modules, tuple(owners))


def _traced(
    model: nn.Module, arguments: CallArguments, changes: Changes, batch: int, rounding: float = 0.0
) -> tuple[dict[str, str], set[str]]:
    """Return a remark on each module that mixes or moves examples, and the names of the dependent buffers."""
    record: ReferencePass = {}
    _, after = _run_copy(model, arguments, influence.recorder(record, rounding))
    _, again = _run_copy(model, arguments, influence.recorder(record, rounding))
    expected = record["", 0, False]
    of_examples = [
        pair
        for pair in zip(expected.values, expected.noise, strict=True)
        if influence.has_example_axis(pair[0], batch)
    ]
    if not of_examples:
        raise ValueError(
            f"No output belongs to an example: forward returns no tensor with an axis for the {batch} examples. "
            "Give the network without its loss."
        )
    for value, difference in of_examples:
        if difference and not difference <= _REPEATABLE * float(influence.gap(value, torch.zeros_like(value)).max()):
            raise ValueError(
                f"Two passes of this {type(model).__name__} on the same inputs, from the same random state of torch, "
                f"numpy and Python, differ by {difference:.2g}. Make it draw its random numbers from one of these."
            )
    mixing, moving, state = dict[str, bool](), set[str](), set[str]()
    for group, others in changes.items():
        output, changed_copy = _run_copy(model, others)
        state |= _different_buffers(after, changed_copy)
        if not _reaches_others(expected, output, batch, group):
            continue
        tracker = Tracker(record, batch, group, mixing)
        output, _ = _run_copy(model, others, tracker)
        if _reaches_others(expected, output, batch, group):
            moving.update(tracker.moving)
            if not tracker.moving:
                mixing.setdefault("", False)
    remarks = {path: "" if clearly or rounding else _FAINTLY for path, clearly in mixing.items()}
    how = dict.fromkeys(moving, _MOVING) | remarks
    return {path: how[path] for path, _, _ in record if path in how}, state - _different_buffers(after, again)


def _reason(module: nn.Module, how: str) -> str:
    kind = type(module).__name__
    if how == _MOVING:
        return f"{kind} {_MOVING}"
    if kind_of(module) == "norm":
        return f"{kind} normalizes by statistics of several examples{how}"
    where = "its own forward code" if any(module.children()) else "one output"
    return f"{kind} combines several examples in {where}{how}"


def _reaches_others(expected: Reference, output: Any, batch: int, group: frozenset[int]) -> bool:
    """Whether the outputs of examples outside the group have changed."""
    changes = expected.changes(tensors_of(output))
    others = [example for example in range(batch) if example not in group]

    def is_confined(change: Tensor) -> bool:
        if change.dim() and change.shape[0] == batch:
            return not change[others].any()
        location = influence.locate_change(change, batch, len(group), group)
        return not influence.has_example_axis(change, batch) or (location is not None and location.examples <= group)

    return changes is None or not all(map(is_confined, changes))


def _different_buffers(model: nn.Module, other: nn.Module) -> set[str]:
    """Return the names of the buffers with different values in two copies of a network."""
    values = dict(other.named_buffers())
    return {
        name
        for name, buffer in model.named_buffers()
        if name not in values or values[name].shape != buffer.shape or influence.changed(buffer, values[name]).any()
    }


def _run_copy(model: nn.Module, arguments: CallArguments, hook: Hook | None = None) -> tuple[Any, nn.Module]:
    """Run a copy of a network on clones of its arguments from a fixed random state; return output and copy."""
    fresh = copied(model)
    if hook is not None:
        influence.hook_calls(fresh, hook)
    positional, named = map_tensors(Tensor.clone, arguments)
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002
    return applied(fresh, *positional, **named), fresh


def _batch_size(arguments: CallArguments) -> int:
    """Return the number of examples (at least 2): the length of axis 0 of the first tensor that has one."""
    if any(tensor.is_meta for tensor in tensors_of(arguments)):
        raise MissingValuesError("Expected inputs with values to be changed, got a tensor on torch's device meta.")
    length = next((tensor.shape[0] for tensor in tensors_of(arguments) if tensor.dim()), None)
    if length is None or length < 2:
        problem = "there is no tensor with an axis" if length is None else f"that has length {length}"
        raise ValueError(
            "Expected a batch of at least two examples along axis 0 of the first tensor, to see whether they mix; "
            f"{problem}. Give more examples."
        )
    return length


def _redrawn(arguments: CallArguments, batch: int, group: frozenset[int]) -> CallArguments:
    """Return the arguments with every element of a group's examples replaced by another value of the same tensor."""
    torch.manual_seed(_SEED)
    rows, varied = sorted(group), list[Tensor]()

    def redraw(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return torch.view_as_complex(redraw(torch.view_as_real(tensor)))
        values, index = torch.unique(tensor, return_inverse=True)
        if not tensor.dim() or tensor.shape[0] != batch or len(values) < 2:
            return tensor
        varied.append(tensor)
        # Without the extremes, so that a maximum over the batch changes.
        excluded = 1 if len(values) > 3 else 0
        inner = values[excluded : len(values) - excluded]
        own = (index[rows] - excluded).clamp(0, len(inner) - 1)
        others = inner[(own + torch.randint_like(own, 1, len(inner))) % len(inner)]
        return tensor.index_copy(0, torch.tensor(rows, device=tensor.device), others)

    result: CallArguments = map_tensors(redraw, arguments)
    if not varied:
        raise ValueError(
            "Examples are replaced by other values of the same input, but every input has one value only. "
            "Give inputs that vary, such as torch.randn."
        )
    return result


def without_zeros(model: nn.Module) -> nn.Module:
    """Return a copy with small random numbers in place of zeros in trainable weights, such as multipliers."""
    network = copied(model)
    torch.manual_seed(_SEED)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.copy_(torch.where(parameter == 0, 0.1 * torch.randn_like(parameter), parameter))
    return network
