"""One forward and backward pass of a network: what ran, whether outputs are finite, and the size of each gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.arguments import applied
from normless.edits._surgery import Surgery
from normless.recording._modules import ModuleRun, Observer
from normless.recording._passes import tensors_in
from normless.state import running

NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")


@dataclass
class Pass:
    """What a pass showed.

    Attributes:
        training: whether it ran in training mode.
        error: what stopped the forward pass, None if it ended.
        runs: the number of runs of each module, by path.
        norms: a norm function that runs in the code of a module, by its path.
        finite: whether all outputs that depend on parameters are finite.
        gradients: the largest |gradient| of each parameter, None if there are no gradients.
    """

    training: bool
    error: Exception | None = None
    runs: Counter[str] = field(default_factory=Counter)
    norms: dict[str, str] = field(default_factory=dict)
    finite: bool = True
    gradients: dict[str, float] | None = None

    def alive(self, name: str) -> bool:
        """Whether a parameter has a nonzero gradient."""
        return (self.gradients or {}).get(name, 0.0) != 0

    @property
    def mode(self) -> str:
        """The name of the mode."""
        return "training" if self.training else "evaluation"


class _Followed(Observer):
    """Note in a `Pass` the modules that run, and the functions that normalize."""

    def __init__(self, seen: Pass) -> None:
        super().__init__()
        self.seen = seen

    def on_enter(self, run: ModuleRun) -> None:
        self.seen.runs[run.path] += 1

    def on_function(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.stack and any(norm in name for norm in NORMS):
            self.seen.norms.setdefault(self.stack[-1].path, name)
        return function(*args, **kwargs)


def passed(surgery: Surgery, model: nn.Module, training: bool, *, follows: bool = False) -> Pass:
    """Run a network on the example inputs in one mode, with a fixed random weighting of all outputs as the loss.

    Runs of modules and functions that normalize are noted if it `follows` them, which takes as long as the pass.
    Modes, buffers, gradients, random states and the parameters that forward code writes are as before afterwards.
    """
    with _kept(model, surgery.map.flow.written):
        return _passed(surgery, model, training, follows)


@contextmanager
def _kept(model: nn.Module, names: set[str]) -> Iterator[None]:
    """Restore the values of parameters of these names."""
    values = [(own, own.detach().clone()) for name, own in model.named_parameters() if name in names]
    try:
        yield
    finally:
        for parameter, value in values:
            parameter.data.copy_(value)


def _passed(surgery: Surgery, model: nn.Module, training: bool, follows: bool) -> Pass:
    """Run the pass."""
    seen = Pass(training)
    names, parameters = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            names.append(name)
            parameters.append(parameter)

    inputs, kwargs = surgery.example
    with running(model, training):
        outputs: list[Tensor] = []
        for graph in (True, False):  # Forward code may write into parameters, which autograd refuses.
            seen.runs.clear()
            seen.norms.clear()
            try:
                following = _Followed(seen).following(model) if follows else nullcontext()
                with torch.set_grad_enabled(graph), following:
                    outputs = [*tensors_in(applied(model, *inputs, **kwargs))]
                seen.error = None
                break
            except Exception as error:
                seen.error = seen.error or error
        trained = [output for output in outputs if output.requires_grad and not output.is_meta]
        if not trained or not parameters:
            return seen
        seen.finite = all(bool(torch.isfinite(output).all()) for output in trained)
        try:
            with torch.enable_grad():
                gradients = torch.autograd.grad(_loss(trained), parameters, allow_unused=True)
        except (RuntimeError, ValueError):  # The backward pass of an operation is not implemented.
            return seen
    seen.gradients = {name: _size(gradient) for name, gradient in zip(names, gradients, strict=True)}
    return seen


def _loss(outputs: list[Tensor]) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    reals = [torch.view_as_real(output) if output.is_complex() else output for output in outputs]
    terms = [real * torch.randn(real.shape, generator=generator).to(real) for real in reals]
    return torch.stack([term.double().sum() for term in terms]).sum()


def _size(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None or not gradient.numel() else float(gradient.detach().abs().max())
