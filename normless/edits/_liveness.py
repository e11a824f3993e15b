"""Check that outputs and gradients of a converted network are finite and its parameters trainable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.arguments import applied
from normless._internal.copying import copied
from normless._internal.warn import warn
from normless.edits._batches import hooked
from normless.edits._passes import Pass, passed
from normless.edits._surgery import Surgery
from normless.errors import UnstableConversionWarning, UnsupportedEditError
from normless.nn import ResidualSum, ScalarAffine
from normless.recording._modules import ModuleRun, followed, is_transformed
from normless.recording._passes import tensors_in
from normless.residual._operations import SELECT_BY_VALUE
from normless.state import running

# Signals of this size come from growth over depth, which a diagnosis finds and no edit causes.
_GROWN, _SHRUNK = 1e12, 1e-25
# A gradient below this share of the largest consists of rounding errors, as that of queries of equal keys.
_ROUNDING = 1e-7


def check_life(surgery: Surgery, evaluation: Pass, original: nn.Module | None) -> None:
    """Check by passes in evaluation that parameters can train.

    A parameter that starts at zero with a nonzero gradient counts as trained, and so is set to other values before
    the parameters that depend on it are checked.

    Args:
        surgery: the network after the edits.
        evaluation: its pass in evaluation.
        original: as in `verify`.

    Raises:
        UnsupportedEditError: parameters have lost their gradients for good, or a multiplier that starts at 0 follows
            a branch that is 0 anyway; the message names the module.
    """
    if evaluation.gradients is None:
        return
    seen = evaluation
    with _openable(surgery, original) as closed, _empty_branches(surgery) as empty:
        # A parameter with a gradient will not stay zero, and then passes gradients on.
        while opened := [name for name in closed if seen.alive(name)]:
            for name in opened:
                closed.pop(name).open()
            seen = _again(surgery, seen)
        held = [*closed]
        for name in held:
            closed[name].open()
        seen = _again(surgery, seen) if held else seen
        saddles = [name for name in held if seen.alive(name)]
        kind = type(surgery.model).__name__
        if saddles:
            raise UnsupportedEditError(
                f"In the converted {kind} {', '.join(saddles[:3])} would start at zero and never get a gradient, "
                "since another zero follows on the same branch, or a function that is flat at zero, such as a ReLU; "
                "skipinit opens such branches by a multiplier in their sum."
            )
        if (path := next((path for path, is_empty in empty.items() if is_empty), None)) is not None:
            raise UnsupportedEditError(
                f"A multiplier that starts at 0 is not possible at {path} of this {kind}: its "
                "branch returns 0 on the example inputs anyway, so neither would ever get a gradient. Let the "
                "multiplier start at 1, as skipinit(alpha=1) does."
            )
        _check_dead(surgery, seen, original, f"converted {kind}")


def _again(surgery: Surgery, before: Pass) -> Pass:
    """Run another pass in evaluation; return the one before if it has no gradients."""
    seen = passed(surgery, surgery.model, training=False)
    return before if seen.gradients is None else seen


@dataclass
class _Closed:
    """A parameter that edits let start at zero, and the values that open its branch."""

    parameter: Tensor
    values: Tensor

    def open(self) -> None:
        """Give the parameter its values."""
        self.parameter.data.copy_(self.values)


@contextmanager
def _openable(surgery: Surgery, original: nn.Module | None) -> Iterator[dict[str, _Closed]]:
    """Find the parameters that edits let start at zero, by name; set them to zero again afterwards."""
    before = {} if original is None else dict(original.named_parameters())
    generator = torch.Generator().manual_seed(0)
    closed: dict[str, _Closed] = {}
    parameter: Tensor
    for path, module in surgery.model.named_modules():
        multiplier = module.multiplier if isinstance(module, (ScalarAffine, ResidualSum)) else None
        if isinstance(multiplier, Tensor) and not multiplier.any():
            # At 1, signals without norms may grow over depth until functions saturate.
            closed[f"{path}.multiplier".lstrip(".")] = _Closed(multiplier, torch.full_like(multiplier, 0.1))
    for name, parameter in surgery.model.named_parameters():
        is_new = name in surgery.log.zeroed or (name in before and bool(before[name].any()))
        if is_new and not parameter.any():
            spread = max(parameter[0].numel(), 1) ** -0.5 if parameter.dim() > 1 else 1.0
            values = torch.randn(parameter.shape, generator=generator) * spread
            closed[name] = _Closed(parameter, values.to(parameter))
    zeros = [entry.parameter for entry in closed.values()]
    try:
        yield closed
    finally:
        for parameter in zeros:
            parameter.data.zero_()


@contextmanager
def _empty_branches(surgery: Surgery) -> Iterator[dict[str, bool]]:
    """Note for each multiplier that starts at 0 whether only its branch, not its input, was 0 in the latest pass."""
    empty: dict[str, bool] = {}

    def note(path: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if is_transformed():
            return
        source, branch = inputs if isinstance(module, ResidualSum) else (inputs[0] if inputs else output, output)
        empty[path] = bool(source.any()) and not bool(branch.any())

    modules = [named for named in surgery.model.named_modules() if isinstance(named[1], (ScalarAffine, ResidualSum))]
    multipliers = ((path, module.multiplier) for path, module in modules)
    closed = [path for path, value in multipliers if isinstance(value, Tensor) and not value.any()]
    with hooked(surgery, closed, note):
        yield empty


def check_finite(surgery: Surgery, seen: Pass, original: nn.Module | None) -> bool:
    """Whether outputs and gradients of a pass are finite; warn of growth, or if the original's are not either.

    Raises:
        UnsupportedEditError: they are no longer finite.
    """
    gradients = seen.gradients or {}
    broken = [name for name, gradient in gradients.items() if not isfinite(gradient)]
    if seen.finite and not broken:
        return True
    before = None if original is None else passed(surgery, original, seen.training)
    if before is not None and not before.finite:
        return False
    path, size = (broken[-1].rpartition(".")[0], 0.0) if seen.finite else _first_not_finite(surgery, seen.training)
    what, network = "Gradients" if seen.finite else "The outputs", f"converted {type(surgery.model).__name__}"
    sentence = f"{what} of the {network} are not finite in {seen.mode} mode on the example inputs, first at {path}"
    grown = max(size, *(gradient for gradient in gradients.values() if isfinite(gradient)), 0.0)
    if grown > _GROWN:
        advice = "they grow with every block; skipinit and fixup start each branch at zero"
        warn(f"{sentence}: {advice}.", UnstableConversionWarning)
        return False
    if before is not None and any(not isfinite((before.gradients or {}).get(name, 0.0)) for name in broken):
        return False
    raise UnsupportedEditError(f"{sentence}, and those of the network as it was are finite.")


def _first_not_finite(surgery: Surgery, training: bool) -> tuple[str, float]:
    """Return the first module with an output that is not finite, and the largest finite value before it."""
    found: list[str] = []
    largest = 0.0

    def leave(run: ModuleRun, output: Any) -> None:
        nonlocal largest
        for tensor in tensors_in(output):
            is_number = tensor.is_floating_point() or tensor.is_complex()
            if found or not tensor.numel() or not is_number:
                continue
            if torch.isfinite(tensor).all():
                largest = max(largest, float(tensor.detach().abs().max()))
            else:
                found.append(run.path)

    inputs, kwargs = surgery.example
    with running(surgery.model, training, inputs, kwargs), followed(surgery.model, leave=leave):
        applied(surgery.model, *inputs, **kwargs)
    return (found or [""])[0] or "its own forward", largest


def _check_dead(surgery: Surgery, seen: Pass, original: nn.Module | None, network: str) -> None:
    """Refuse parameters without a gradient that had a gradient in the original."""
    dead = [name for name in seen.gradients or {} if not seen.alive(name)]
    selects = any(operation.name in SELECT_BY_VALUE for operation in surgery.map.flow.operations)
    if not dead or original is None or selects or _shrinks(seen):
        return
    # A copy too, so that tensors that forward code has kept from earlier passes have no history in both.
    before = passed(surgery, copied(original), training=False)
    if before.gradients is None or _shrinks(before):
        return
    least = _ROUNDING * max(before.gradients.values(), default=0.0)
    lost = [name for name in dead if before.gradients.get(name, 0.0) > least]
    if lost:
        more = f" and {len(lost) - 1} other parameters" if len(lost) > 1 else ""
        raise UnsupportedEditError(
            f"In the {network} {lost[0]}{more} no longer have any gradient on the example inputs, as they had in the "
            "network as it was."
        )


def _shrinks(seen: Pass) -> bool:
    """Whether gradients fall over depth so far that they may underflow."""
    return any(0 < gradient < _SHRUNK for gradient in (seen.gradients or {}).values())
