"""Whether the examples of a batch influence one another's outputs, and through which modules."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from normless.arguments import forward_arguments
from normless.probes.dependence.differences import changed, holds_examples, largest_difference, noise_of, place_of
from normless.probes.dependence.influence import Pass, Recorder, Tracker
from normless.probes.dependence.perturbation import batch_size, groups, redrawn, without_zeros
from normless.probes.dependence.repeatable import Arguments, run_fresh, tensors_of, undisturbed_process
from normless.residual.classify import kind_of

Change = tuple[frozenset[int], Arguments]
"""A group of examples, and arguments in which they are others."""

_REPEATABLE = 1e-3
_ROUNDING = 1e-12
_CLEARLY = ""
_FAINTLY = ", by so little that it may be rounding"
_MOVING = "puts examples in the places of others"


@dataclass(frozen=True)
class MixingModule:
    """A module through which examples influence one another: its qualified name, and how."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'the network itself'}: {self.reason}"


@dataclass(frozen=True)
class ExampleMixing:
    """What `mixes_examples` found; true if an example's output depends on another example.

    `modules` are those that cause it, in execution order. `state` are the modules with a buffer that the pass leaves
    dependent on the examples, such as running statistics: no output of this pass, but an input of later ones.
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
            lines.append(f"Buffers that keep a trace of the examples: {', '.join(self.state)}.")
        return "\n".join(lines)


def mixes_examples(model: nn.Module, *inputs: Any, example_inputs: Any = None, **kwargs: Any) -> ExampleMixing:
    """Measure whether any example's output depends on another example of the batch, and which modules cause it.

    Example j depends on example i if ∃ x, x' that differ in x_i only: f(x)_j ≠ f(x')_j. The network runs twice as it
    is, in its own mode and precision, then once for each of 2⌈log₂ B⌉ groups of examples with every element of the
    group's inputs replaced by another value of the same tensor. For every pair (i, j) some group holds i and not
    j. All passes draw the same random numbers in the same shapes, so dropout is no influence.

    Outputs of other examples that stay the same bit by bit do not depend on the group (where kernels do not repeat
    themselves, up to 8 times what the first two passes differ by). A difference small enough to be rounding must
    show in double precision too, above 8·10⁻¹² of the largest value: sums of another length, as over the tokens
    sent to an expert, are rounded otherwise. For a network that only runs in its own precision it counts, and the
    reason says so. Examples lie along axis 0 of the inputs, and of the outputs that have B rows there; other
    outputs are searched for an axis that holds them; one without such an axis (a loss) belongs to no example and
    is left out.

    Modules are judged one by one: what a module carries over to other examples is taken back at its output
    before the next one runs. Named are the innermost ones; where a module's forward code mixes, that module. Among
    them may be one whose result the output does not use.

    What is measured is the very next forward pass, on copies: the model and torch's, numpy's and Python's random
    states stay as they are. Trainable weights that are exactly zero are moved off zero in the copies, since
    a zero multiplier hides what lies behind it until the first step. Not seen is what needs other inputs to show (a
    comparison that all these draws decide alike) and memory between passes outside the buffers.

    Args:
        model: the network, in training or in evaluation mode.
        inputs: what its forward takes; B is the length of axis 0 of the first tensor that has one, at least 2.
            Tensors of another length there are shared by the examples. A few examples are enough; memory for the
            activations of one pass is taken twice over.
        example_inputs: in the place of `inputs` and `kwargs`: a tensor, a tuple of positional or a dictionary of
            keyword arguments.
        kwargs: more of the same.

    Returns:
        Whether examples mix (its truth value), the modules that cause it, and the buffers left dependent on them.

    Raises:
        ValueError: there is no batch of two examples or more, the inputs hold one value only, no output belongs to
            an example, or the same pass gives different outputs twice.
    """
    model = getattr(model, "_orig_mod", model)  # A compiled network hides its modules in fused code.
    arguments = Arguments(*forward_arguments(inputs, kwargs, example_inputs))
    batch = batch_size(arguments)
    with undisturbed_process(model):
        probed = without_zeros(model)
        changes = [(group, redrawn(arguments, batch, group)) for group in groups(batch)]
        output, after = run_fresh(probed, arguments)
        expected = _with_examples(output, batch)
        repeated, again = run_fresh(probed, arguments)
        noise = _noise(expected, _with_examples(repeated, batch), model)
        unsteady = _different_buffers(after, again)
        leaking: list[Change] = []
        state: set[str] = set()
        for group, others in changes:
            output, changed_copy = run_fresh(probed, others)
            state |= _different_buffers(after, changed_copy) - unsteady
            if _reaches_others(expected, _with_examples(output, batch), noise, batch, group):
                leaking.append((group, others))
        modules = _culprits(probed, arguments, leaking, batch) if leaking else ()
    order = [name.rpartition(".")[0] for name, _ in model.named_buffers() if name in state]
    return ExampleMixing(modules, tuple(dict.fromkeys(order)))


def _culprits(model: nn.Module, arguments: Arguments, leaking: list[Change], batch: int) -> tuple[MixingModule, ...]:
    """The modules that carry a change of these groups over to other examples, none if all they carry is rounding."""
    how = _traced(model, arguments, leaking, batch, rounding=0.0)
    if _FAINTLY in how.values() and (precise := _in_double(model, arguments)) is not None:
        changes = [(group, others.map(_doubled)) for group, others in leaking]
        confirmed = _traced(precise, arguments.map(_doubled), changes, batch, _ROUNDING)
        how = {path: _CLEARLY if text == _FAINTLY else text for path, text in confirmed.items()}
    return tuple(MixingModule(path, _reason(model.get_submodule(path), text)) for path, text in how.items())


def _traced(
    model: nn.Module, arguments: Arguments, leaking: list[Change], batch: int, rounding: float
) -> dict[str, str]:
    """The modules that mix or move examples, in execution order, and what there is to say on how each does."""
    record = Pass(rounding)
    output, _ = run_fresh(model, arguments, Recorder(record))
    repeated, _ = run_fresh(model, arguments, Recorder(record))
    expected = _with_examples(output, batch)
    pairs = zip(expected, _with_examples(repeated, batch), strict=True)
    noise = [noise_of(*pair, rounding) for pair in pairs]
    how: dict[str, str] = {}
    for group, others in leaking:
        output, _ = run_fresh(model, others)
        if not _reaches_others(expected, _with_examples(output, batch), noise, batch, group):
            continue
        tracker = Tracker(record, batch, group)
        output, _ = run_fresh(model, others, tracker)
        if _reaches_others(expected, _with_examples(output, batch), noise, batch, group):
            for path in tracker.moving or [""]:
                how.setdefault(path, _MOVING if tracker.moving else _FAINTLY)
        for path, clearly in tracker.mixing.items():
            if clearly or how.get(path) != _CLEARLY:
                how[path] = _CLEARLY if clearly else _FAINTLY
    return {path: how[path] for path in dict.fromkeys(path for path, _, _ in record.values) if path in how}


def _in_double(model: nn.Module, arguments: Arguments) -> nn.Module | None:
    """A copy in double precision, or None for a network that insists on its own."""
    precise = deepcopy(model).double()
    try:
        run_fresh(precise, arguments.map(_doubled))
    except Exception:  # Whatever forward code makes of a precision it does not expect.
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
    """The tensors of an output that have an axis for the examples."""
    found = [tensor for tensor in tensors_of(output) if holds_examples(tensor, batch)]
    if not found:
        raise ValueError(
            f"No output belongs to an example: forward returns no tensor with an axis for the {batch} examples. "
            "Give the network without its loss."
        )
    return found


def _noise(expected: list[Tensor], repeated: list[Tensor], model: nn.Module) -> list[float]:
    """How far each output strays when the same pass is repeated: 0 where kernels are deterministic."""
    noise = []
    for value, again in zip(expected, repeated, strict=True):
        stray = largest_difference(value, again) if value.shape == again.shape else inf
        if stray and not stray <= _REPEATABLE * largest_difference(value, torch.zeros_like(value)):
            raise ValueError(
                f"Two passes of this {type(model).__name__} on the same inputs, from the same random state of torch, "
                f"numpy and Python, differ by {stray:.2g}. Make it draw its random numbers from one of these."
            )
        noise.append(stray)
    return noise


def _reaches_others(
    expected: list[Tensor], found: list[Tensor], noise: list[float], batch: int, group: frozenset[int]
) -> bool:
    """Whether the outputs of examples outside the group have changed."""
    if [value.shape for value in expected] != [value.shape for value in found]:
        return True
    others = [example for example in range(batch) if example not in group]
    for value, other, stray in zip(expected, found, noise, strict=True):
        change = changed(value, other, stray)
        if value.dim() and value.shape[0] == batch:
            if change[others].any():
                return True
        elif change.any():
            place = place_of(change, batch, len(group), group)
            if place is None or not place.examples <= group:
                return True
    return False


def _different_buffers(model: nn.Module, other: nn.Module) -> set[str]:
    """Names of the buffers that two copies of a network do not share the value of."""
    values = dict(other.named_buffers())
    return {
        name
        for name, buffer in model.named_buffers()
        if name not in values or values[name].shape != buffer.shape or changed(buffer, values[name]).any()
    }
