"""Check by backward passes that outputs and gradients of a converted network are finite and parameters trainable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.arguments import applied
from normless._internal.state import running
from normless._internal.warn import warn
from normless.edits.surgery import Surgery
from normless.errors import UnstableConversionWarning, UnsupportedEditError
from normless.nn import ResidualSum, ScalarAffine
from normless.recording import Run, followed, tensors_in
from normless.residual.operations import SELECT_BY_VALUE

# Signals of this size come from growth over depth, which a diagnosis finds and no edit causes.
_GROWN, _SHRUNK = 1e12, 1e-25
# A gradient below this share of the largest consists of rounding errors, as that of queries of equal keys.
_ROUNDING = 1e-7


@dataclass(frozen=True)
class _Pass:
    """A forward and backward pass: whether outputs are finite, and the largest |gradient| of each parameter."""

    finite: bool
    gradients: dict[str, float]

    def alive(self, name: str) -> bool:
        """Whether a parameter has a nonzero gradient."""
        return self.gradients.get(name, 0.0) != 0

    @property
    def shrinks(self) -> bool:
        """Whether gradients fall over depth so far that they may underflow."""
        return any(0 < gradient < _SHRUNK for gradient in self.gradients.values())


def check_life(surgery: Surgery, original: nn.Module | None) -> None:
    """Check by passes on the example inputs that outputs and gradients are finite, and that parameters can train.

    A parameter that starts at zero with a nonzero gradient counts as trained, and so is set to other values before
    the parameters that depend on it are checked.

    Args:
        surgery: the network after the edits.
        original: the network before the edits. Without it, parameters are only refused if zeros of the edits keep
            each other at zero.

    Raises:
        UnsupportedEditError: outputs or gradients are no longer finite, or parameters have lost their gradients for
            good; the message names the module.
    """
    if surgery.is_meta:
        return
    network = f"converted {type(surgery.model).__name__}"
    for training in (True, False):
        passed = _passed(surgery, surgery.model, training)
        if passed is not None and not _is_finite(surgery, passed, original, network, training):
            return
    if passed is None:
        return
    with _openable(surgery, original) as closed:
        # A parameter with a gradient will not stay zero, and then passes gradients on.
        while opened := [name for name in closed if passed.alive(name)]:
            for name in opened:
                closed.pop(name).open()
            passed = _passed(surgery, surgery.model, training=False) or passed
        held = [*closed]
        for name in held:
            closed[name].open()
        passed = (_passed(surgery, surgery.model, training=False) if held else None) or passed
        saddles = [name for name in held if passed.alive(name)]
        if saddles:
            raise UnsupportedEditError(
                f"In the {network} {', '.join(saddles[:3])} would start at zero and never get a gradient, since "
                "another zero follows on the same branch, or a function that is flat at zero, such as a ReLU; "
                "skipinit opens such branches by a multiplier in their sum."
            )
        _check_dead(surgery, passed, original, network)


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
            closed[f"{path}.multiplier".lstrip(".")] = _Closed(multiplier, torch.ones_like(multiplier))
    for name, parameter in surgery.model.named_parameters():
        is_new = name in surgery.zeroed or (name in before and bool(before[name].any()))
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


def _passed(surgery: Surgery, model: nn.Module, training: bool) -> _Pass | None:
    """Run a pass with a fixed random weighting of all outputs as the loss; return None if it gives no gradients."""
    names, parameters = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            names.append(name)
            parameters.append(parameter)
    try:
        with running(model, training), torch.enable_grad():
            returned = tensors_in(applied(model, *surgery.inputs, **surgery.kwargs))
            outputs = [output for output in returned if output.requires_grad]
            if not outputs or not parameters:
                return None
            generator = torch.Generator().manual_seed(1)
            reals = [torch.view_as_real(output) if output.is_complex() else output for output in outputs]
            terms = [real * torch.randn(real.shape, generator=generator).to(real) for real in reals]
            loss = torch.stack([term.double().sum() for term in terms]).sum()
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    except (RuntimeError, ValueError):
        # It does not run in this mode, as `verify` has reported, or its backward pass is not implemented.
        return None
    sizes = {
        name: 0.0 if gradient is None else float(gradient.detach().abs().max()) if gradient.numel() else 0.0
        for name, gradient in zip(names, gradients, strict=True)
    }
    return _Pass(all(bool(torch.isfinite(output).all()) for output in outputs), sizes)


def _is_finite(surgery: Surgery, passed: _Pass, original: nn.Module | None, network: str, training: bool) -> bool:
    """Whether outputs and gradients are finite; raise an error, or warn of growth, if only the original's are."""
    broken = [name for name, gradient in passed.gradients.items() if not isfinite(gradient)]
    if passed.finite and not broken:
        return True
    before = None if original is None else _passed(surgery, original, training)
    if before is not None and not before.finite:
        return False
    mode = "training" if training else "evaluation"
    path, size = _first_not_finite(surgery, training) if not passed.finite else (broken[-1].rpartition(".")[0], 0.0)
    what = "The outputs" if not passed.finite else "Gradients"
    sentence = f"{what} of the {network} are not finite in {mode} mode on the example inputs, first at {path}"
    grown = max(size, *(gradient for gradient in passed.gradients.values() if isfinite(gradient)), 0.0)
    if grown > _GROWN:
        advice = "they grow with every block; skipinit and fixup start each branch at zero"
        warn(f"{sentence}: {advice}.", UnstableConversionWarning)
        return False
    if before is not None and any(not isfinite(before.gradients.get(name, 0.0)) for name in broken):
        return False
    raise UnsupportedEditError(f"{sentence}, and those of the network as it was are finite.")


def _first_not_finite(surgery: Surgery, training: bool) -> tuple[str, float]:
    """Return the first module with an output that is not finite, and the largest finite value before it."""
    found: list[str] = []
    largest = 0.0

    def leave(run: Run, output: Any) -> None:
        nonlocal largest
        for tensor in tensors_in(output):
            is_number = tensor.is_floating_point() or tensor.is_complex()
            if found or not tensor.numel() or not is_number:
                continue
            if torch.isfinite(tensor).all():
                largest = max(largest, float(tensor.detach().abs().max()))
            else:
                found.append(run.path)

    with running(surgery.model, training), followed(surgery.model, leave=leave):
        applied(surgery.model, *surgery.inputs, **surgery.kwargs)
    return (found or [""])[0] or "its own forward", largest


def _check_dead(surgery: Surgery, passed: _Pass, original: nn.Module | None, network: str) -> None:
    """Refuse parameters without a gradient that had a gradient in the original."""
    dead = [name for name in passed.gradients if not passed.alive(name)]
    selects = any(operation.name in SELECT_BY_VALUE for operation in surgery.map.flow.operations)
    if not dead or original is None or selects or passed.shrinks:
        return
    before = _passed(surgery, original, training=False)
    if before is None or before.shrinks:
        return
    least = _ROUNDING * max(before.gradients.values(), default=0.0)
    lost = [name for name in dead if before.gradients.get(name, 0.0) > least]
    if lost:
        more = f" and {len(lost) - 1} other parameters" if len(lost) > 1 else ""
        raise UnsupportedEditError(
            f"In the {network} {lost[0]}{more} no longer have any gradient on the example inputs, as they had in the "
            "network as it was."
        )
