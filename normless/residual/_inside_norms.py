"""Find the activations, dropout and factors that a norm's forward code applies besides normalizing, as modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from normless.errors import LiftError
from normless.nn._channels import per_channel
from normless.nn._function import Function
from normless.recording._calls import Call
from normless.recording._passes import recorded
from normless.residual._classify import kind_of
from normless.residual._graph import Dataflow, Fixed
from normless.residual._operations import ACTIVATION, LAYOUT, NORM
from normless.residual._reader import read_dataflow
from normless.state import in_mode, running

_DROPOUT: Mapping[str, type[nn.Module]] = {
    "dropout": nn.Dropout,
    "dropout1d": nn.Dropout1d,
    "dropout2d": nn.Dropout2d,
    "dropout3d": nn.Dropout3d,
    "alpha_dropout": nn.AlphaDropout,
    "feature_alpha_dropout": nn.FeatureAlphaDropout,
}
_ARITHMETIC = {"mul", "rmul", "div", "truediv", "add", "radd", "sub", "neg"}
_CASTS = LAYOUT | {"type", "double", "flatten", "unflatten", "expand_as"}
# A norm of several statistics splits its input and joins the parts.
_SPLITS = _CASTS | {"cat", "concat", "stack", "split", "chunk", "tensor_split", "getitem", "unbind", "narrow"}
_CLAMPS = {"clamp", "clamp_min"}
_PLAIN = {
    *(getattr(nn, f"{kind}Norm{axes}d") for kind in ("Batch", "Instance") for axes in (1, 2, 3)),
    *(nn.SyncBatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
}


@dataclass(frozen=True)
class NormPart:
    """A module that a norm applies besides its normalization; `is_child` says whether it is a child of the norm."""

    name: str
    module: nn.Module
    is_child: bool = False


@dataclass(frozen=True)
class Inside:
    """The modules that a norm applies before and after its normalization, in execution order."""

    before: tuple[NormPart, ...] = ()
    after: tuple[NormPart, ...] = ()


def is_plain(norm: nn.Module) -> bool:
    """Whether a norm is of one of torch's own classes, which only normalize."""
    return type(norm) in _PLAIN


def inside(norm: nn.Module, shape: tuple[int, ...] | None = None, *, evaluation_only: bool = False) -> Inside:
    """Find the modules that a norm applies to its input and to its normalized output.

    The norm runs on a trial input in both modes, or in evaluation only. An activation, factor or dropout that is a
    function in its forward code becomes a module with the arguments of the call. Changes of layout, which commute
    with these, are omitted.

    Args:
        norm: the norm.
        shape: the shape of its input, if known.
        evaluation_only: whether to run the norm in evaluation only.

    Raises:
        LiftError: its forward takes more than one tensor, differs between training and evaluation, or contains an
            operation that is neither part of the normalization nor a function of one tensor.
    """
    if is_plain(norm):
        return Inside()
    read = {}
    failure: Exception | None = None
    for training in (False,) if evaluation_only else (False, True):
        for x in trials(norm, shape):
            try:
                read[training] = _read(norm, x, training)
                break
            except LiftError:
                raise
            except Exception as error:
                failure = error
    if not read:
        raise LiftError(f"a {type(norm).__name__} does not run on one tensor alone ({failure and failure.__cause__})")
    before, after = (_joined(norm, modes) for modes in zip(*read.values(), strict=True))
    names: set[str] = set()
    return Inside(*(tuple(_part(step, names) for step in steps) for steps in (before, after)))


def scales_second_axis(norm: nn.Module, gamma: str, shape: tuple[int, ...] | None) -> bool:
    """Run a norm to find out whether its parameter `gamma` scales the second axis of its input."""
    parameter = norm.get_parameter(gamma)
    if parameter.dim() != 1 or parameter.is_meta:
        return False
    for x in trials(norm, shape):
        try:
            with running(norm, False):
                before = norm(x.clone())
                parameter[0] += 1
                after = norm(x.clone())
                parameter[0] -= 1
        except Exception:
            continue
        moved = (before != after).movedim(1, 0).flatten(1).any(1)
        return bool(moved[0]) and not bool(moved[1:].any())
    return False


@dataclass(frozen=True)
class _Step:
    """A function or child that a norm ran on results of other operations.

    Attributes:
        call: the call in the norm's own code.
        child: the child that it runs, None for a function.
        sources: the operations that it reads.
        results: the operations in it that others read.
        fixed: the tensors that it reads and that do not depend on the norm's input.
        in_evaluation: whether it runs in evaluation.
    """

    call: Call
    child: nn.Module | None
    sources: tuple[int, ...]
    results: frozenset[int]
    fixed: tuple[Fixed, ...]
    in_evaluation: bool = False

    @property
    def name(self) -> str:
        """The name of the function or child."""
        return self.call.name

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for equal functions with equal arguments."""
        return (self.name, self.child, self.call.function, repr(self.call.args[1:]), repr(self.call.kwargs))

    @property
    def draws(self) -> bool:
        """Whether it reads random numbers."""
        return any(tensor.random for tensor in self.fixed)

    @property
    def kind(self) -> str:
        """The kind of step: `norm`, `layout`, `affine` by constants of the norm, `function`, `child` or `other`."""
        if self.child is not None:
            return {"norm": "norm", "weight": "other"}.get(kind_of(self.child) or "", "child")
        if self.name in NORM:
            return "norm"
        if self.draws:
            return "other"
        if len(self.sources) != 1:
            return "layout" if self.name in ("type_as", "view_as", "reshape_as") and self.call.args else "other"
        if self.name in _CASTS and not self.fixed:
            return "layout"
        if self.fixed:
            return "affine" if self.name in _ARITHMETIC | {"addcmul"} else "other"
        is_function = self.name in ACTIVATION or self.name in _DROPOUT or self.name in _ARITHMETIC
        return "function" if is_function and self.call.args[:1] == (Tensor,) else "other"


def _steps(norm: nn.Module, flow: Dataflow) -> list[_Step]:
    """Return the steps of a pass through a norm."""
    parts: dict[Call, list[int]] = defaultdict(list)
    for at, operation in enumerate(flow.operations):
        call = operation.made_by
        while call is not None and call.module:
            call = call.around
        if call is not None:
            parts[call].append(at)
    modules, steps = dict(norm.named_modules()), []
    for call, own in parts.items():
        sources = dict.fromkeys(parent for at in own for parent in flow[at].parents if parent not in own)
        results = frozenset(at for at in own if at in flow.outputs or not {*flow.consumers[at]}.issubset(own))
        fixed = tuple(tensor for at in own for tensor in flow[at].fixed)
        child = None if call.function is not None else modules.get(call.name)
        steps.append(_Step(call, child, tuple(sources), results, fixed))
    return steps


def trials(norm: nn.Module, shape: tuple[int, ...] | None) -> Iterator[Tensor]:
    """Make trial inputs for a norm: of the known shape with at least two examples, or of shapes of its width."""
    shapes = [] if shape is None else [(max(2, shape[0]), *shape[1:])]
    tensors = (*norm.parameters(), *norm.buffers())
    reference = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.ones(1))
    if shape is None:
        width = int(getattr(norm, "num_features", 0) or getattr(norm, "num_channels", 0) or reference.numel())
        shapes = [(3, width, *[2] * axes) for axes in (2, 1, 0, 3)] + [(3, 2, width), (3, 2, 2, width)]
    mean, variance = (getattr(norm, name, None) for name in ("running_mean", "running_var"))
    for sizes in shapes:
        # Values of both signs that do not use the random state, around the running mean.
        steps = torch.arange(prod(sizes), dtype=torch.float32).reshape(sizes)
        x = (3 * torch.sin(1.7 * steps)).to(reference)
        if isinstance(mean, Tensor) and isinstance(variance, Tensor) and mean.shape == x.shape[1:2]:
            x = per_channel(mean, x) + per_channel(variance.sqrt(), x) * x
        yield x.detach().to(reference)


def agree(
    norm: nn.Module, other: nn.Module, shape: tuple[int, ...] | None = None, *, rtol: float, atol: float
) -> bool:
    """Whether a module computes what a norm does in evaluation, on the first trial input that the norm takes."""
    for x in trials(norm, shape):
        with running(norm, False), running(other, False):
            try:
                expected = norm(x.clone())
            except Exception:
                continue
            try:
                return torch.allclose(other(x.clone()), expected, rtol=rtol, atol=atol)
            except Exception:
                return False  # A child that is not part of the forward pass, such as a list of norms.
    return False


def _read(norm: nn.Module, x: Tensor, training: bool) -> tuple[list[_Step], list[_Step]]:
    """Return the steps before and after the normalization in one mode."""
    with in_mode(norm, training):
        tape = recorded(norm, (x,), {})
    flow = read_dataflow(tape)
    if not tape.returns_tensor or [flow[end].shape for end in flow.outputs] != [x.shape]:
        raise LiftError(f"a {type(norm).__name__} returns something other than a tensor of its input's shape")
    path, formula = _path(_steps(norm, flow), flow)
    if formula:
        _check_formula(norm, formula)
    kinds = [step.kind for step in path]
    scaling = [place for place, kind in enumerate(kinds) if kind in ("affine", "norm")]
    operators = [place for place, kind in enumerate(kinds) if kind == "norm"]
    # A chain of constants alone is a frozen norm.
    start = -1 if formula else (operators or scaling or [len(path)])[0]
    end = max([start, *(place for place in scaling if place > start)])
    before, between, after = path[: max(start, 0)], path[start + 1 : end], path[end + 1 :]
    if formula and not any(step.kind == "norm" for step in formula):
        # A constant factor belongs to the formula, as √n to √n · x / |x|.
        while after and after[0].name in _ARITHMETIC:
            after = after[1:]
        between = [step for step in between if step.name not in _ARITHMETIC]
    strange = [step for step in before if step.kind == "affine"]
    strange += [step for step in between if step.kind in ("function", "child", "norm")]
    if strange:
        raise LiftError(f"a {type(norm).__name__} does more than normalize: {strange[0].name} comes in between")
    after = [*(step for step in formula if step.kind == "child"), *after]
    return _kept(before), _kept(after)


def _path(steps: list[_Step], flow: Dataflow) -> tuple[list[_Step], list[_Step]]:
    """Split steps into those with one input that lead to `end` and those before, none if they start at the input."""
    path: list[_Step] = []
    at, end = len(steps), max(flow.outputs)
    while flow[end].name != "input":
        at = next((place for place in range(at - 1, -1, -1) if end in steps[place].results), -1)
        if at < 0 or steps[at].kind == "other":
            return path, steps[: at + 1]
        path.insert(0, steps[at])
        end = steps[at].sources[0]
    return path, []


def _kept(steps: list[_Step]) -> list[_Step]:
    return [step for step in steps if step.kind in ("function", "child")]


def _check_formula(norm: nn.Module, steps: list[_Step]) -> None:
    """Check that the steps of a normalization only compute statistics or normalize parts of the input."""
    reached = set(steps[-1].results) if steps else set()
    needed: list[_Step] = []
    # Updates of running statistics do not reach an output.
    for step in reversed(steps):
        if not reached.isdisjoint(step.results) or step is steps[-1]:
            needed.append(step)
            reached |= {*step.sources}
    has_operator = any(step.kind == "norm" for step in needed)
    for step in needed:
        bends = step.name in ACTIVATION - _CLAMPS or step.draws or step.name in _DROPOUT
        is_other = has_operator and step.kind not in ("norm", "affine", "layout") and step.name not in _SPLITS
        if step.child is None and (bends or is_other):
            raise LiftError(f"a {type(norm).__name__} does more than normalize: {step.name} is part of its formula")


def _joined(norm: nn.Module, modes: tuple[list[_Step], ...]) -> list[_Step]:
    """Join the steps of both modes into one list; only dropout may run in training alone."""
    evaluation, training = modes[0], modes[-1]
    kept = [replace(step, in_evaluation=True) for step in evaluation if not _is_idle(step)]
    both = {step.key for step in kept}
    lasting = [step for step in training if step.name not in _DROPOUT or step.key in both]
    if [step.key for step in kept] != [step.key for step in lasting] and len(modes) > 1:
        raise LiftError(f"the forward code of a {type(norm).__name__} differs between training and evaluation")
    if len(modes) == 1:
        return [step if _is_idle(step) else replace(step, in_evaluation=True) for step in evaluation]
    return [replace(step, in_evaluation=step.key in both) for step in training]


def _is_idle(step: _Step) -> bool:
    """Whether a step is dropout that is inactive in its mode."""
    return step.name in _DROPOUT and step.child is None and not _dropout(step)[1]


def _dropout(step: _Step) -> tuple[float, bool]:
    """Return the rate of a dropout function and whether it was active."""
    given = {**dict(zip(("input", "p", "training"), step.call.args, strict=False)), **step.call.kwargs}
    return float(given.get("p", 0.5)), bool(given.get("training", True))


def _part(step: _Step, names: set[str]) -> NormPart:
    """Convert a step to a module with a unique name."""
    if step.child is not None:
        return NormPart(step.name, step.child, is_child=True)
    number, name = 0, step.name
    while name in names:
        number += 1
        name = f"{step.name}_{number}"
    names.add(name)
    if step.name in _DROPOUT and not step.in_evaluation:
        return NormPart(name, _DROPOUT[step.name](_dropout(step)[0]))
    return NormPart(name, Function(step.call.function, step.call.args[1:], step.call.kwargs))
