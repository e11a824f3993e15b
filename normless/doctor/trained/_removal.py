"""Checks of what could go: branches and layers that do nothing, and the cost of constant divisors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from math import inf, isfinite, isnan
from typing import Any

import torch
from torch import Tensor, nn

from normless.doctor._findings import NotAsked, Steps, check, finding
from normless.doctor.trained._limits import IDLE, REMOVABLE
from normless.doctor.trained._meter import channel_of
from normless.doctor.trained._subject import UNFIT, TrainedSubject
from normless.errors import InputsError
from normless.nn import ResidualSum
from normless.probes.hooks._additions import intercepted
from normless.recording._modules import is_transformed
from normless.residual import ResidualBlock
from normless.residual._classify import kind_of
from normless.state import running


@dataclass
class Removals:
    """The changes of output and loss without parts of a network, of which one at a time is left out."""

    subject: TrainedSubject
    changes: dict[str, tuple[float, float]] = field(default_factory=dict)

    def leave_out(self, name: str, kind: str, without: AbstractContextManager[list[float]]) -> list[float]:
        """Leave out one part; return what its context has noted, nothing if the part did not run."""
        with without as noted:
            try:
                change, loss = self.subject.change()
            except InputsError:  # Forward code takes a derivative through this part.
                return []
        if not noted or isnan(change):
            return []
        self.changes[name] = change, loss
        self.subject.note(name, kind, removal=change, removal_loss=loss)
        return noted


@check("branches and layers")
def check_parts(subject: TrainedSubject) -> Steps:
    """Leave out one residual branch or weight layer at a time, and look for those that hardly change the output."""
    branches, layers, idle, equal = Removals(subject), Removals(subject), set[str](), list[str]()
    with running(subject.model, False):
        subject.reference  # noqa: B018
        for block in subject.map.walk() if subject.map else ():
            # Blocks that contain the blocks in series, and interpolations, cannot be removed.
            if not block.is_global and not block.interpolates and subject.judges(subject.place(block.name)):
                branches.leave_out(block.name, "block", _without_branch(subject, block))
                if branches.changes.get(block.name, (inf,))[0] < IDLE:
                    idle |= {layer.path for layer in block.branch_layers}
        for path in _weights(subject):
            # Layers on branches that do nothing change nothing.
            if ":" not in path and path not in idle and subject.judges(path):
                apart = layers.leave_out(path, "weight", _averaged(subject.model.get_submodule(path)))
                equal += [path] if apart and max(apart) < IDLE else []
    limits = (
        ("idle_branch", branches.changes, -1.0, IDLE),
        ("removable_branch", branches.changes, IDLE, REMOVABLE),
        ("idle_layer", layers.changes, -1.0, IDLE),
    )
    for kind, measured, above, below in limits:
        found = sorted((*pair, name) for name, pair in measured.items() if above <= pair[0] < below)
        for change, loss, _ in found[:1]:
            evidence = {"change": change, "limit": below, "parts": len(found), "of": len(measured)}
            evidence |= {"loss": loss} if isfinite(loss) else {}
            yield finding(kind, [*dict.fromkeys(subject.place(name) for *_, name in found)], evidence)
    if equal:
        yield finding("identity_layer", equal, {"layers": len(equal), "limit": IDLE})
    changes = branches.changes | layers.changes
    if not changes:
        why = f"the network has no residual map: {subject.unmapped}" if subject.unmapped else "nothing could go"
        raise NotAsked(why if subject.unfit is None else UNFIT)
    least = min(changes, key=lambda name: changes[name][0])
    summary = f"{len(branches.changes)} branches and {len(layers.changes)} layers left out one at a time"
    return f"{summary}; the output changes least without {least}, by {changes[least][0]:.2g}"


def _weights(subject: TrainedSubject) -> list[str]:
    """Return the paths of the weight layers that run."""
    if subject.map is None:
        return [path for path, module in subject.model.named_modules() if kind_of(module) == "weight"]
    layers = (layer for layer in subject.map.layers() if layer.kind == "weight" and layer.called)
    return [*dict.fromkeys(layer.path for layer in layers)]


@contextmanager
def _without_branch(subject: TrainedSubject, block: ResidualBlock) -> Iterator[list[float]]:
    """Let a block return its skip path, and yield a number for each sum; none if its sum was not seen."""
    noted, missed = list[float](), list[str]()

    def of_module(_: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        noted.append(1.0)
        return inputs[0], torch.zeros_like(inputs[1])

    def on_sum(own: ResidualBlock, skip: Tensor, _: tuple[Tensor, ...], total: Tensor) -> Tensor | None:
        if own.name != block.name:
            return None
        noted.append(1.0)
        return skip.expand_as(total)

    assert subject.map is not None
    with ExitStack() as stack:
        module = subject.model.get_submodule(block.sum) if block.sum is not None else None
        if isinstance(module, ResidualSum) and len(block.branches) == 1:
            stack.callback(module.register_forward_pre_hook(of_module).remove)
        if block.additions:
            stack.enter_context(
                intercepted(subject.model, subject.map, on_sum, lambda own, _: missed.append(own.name))
            )
        yield noted
    if block.name in missed:
        noted.clear()


@contextmanager
def _averaged(layer: nn.Module) -> Iterator[list[float]]:
    """Let a weight layer return the mean of each output channel, and yield ‖y − x‖ / ‖x‖ of each run.

    It is infinite if the shapes differ.
    """
    apart: list[float] = []

    def hook(module: nn.Module, inputs: tuple[Any, ...], y: Any) -> Tensor | None:
        x = inputs[0] if inputs else None
        if is_transformed() or not isinstance(y, Tensor) or y.dim() < 2 or not isinstance(x, Tensor):
            return None
        axis = channel_of(module, y) % y.dim()
        # The mean of a single row, such as an expert's of one token, is the row.
        if y.numel() == y.shape[axis]:
            return None
        is_like = x.shape == y.shape and x.dtype == y.dtype
        apart.append(float((y - x).norm() / x.norm().clamp_min(1e-30)) if is_like else inf)
        return y.mean([other for other in range(y.dim()) if other != axis], keepdim=True).expand_as(y).clone()

    with layer.register_forward_hook(hook):
        yield apart


@check("cost of removing norms")
def check_cost(subject: TrainedSubject) -> Steps:
    """Measure what the output and loss lose if one norm at a time divides by a constant; batch norms fold exactly."""
    for path in subject.norms:
        subject.note(path, "norm", cost=0.0, cost_loss=0.0)
    divisors, (_, refused, tokens) = subject.measured.divisors, subject.freezables
    if not divisors and not subject.norms:
        raise NotAsked(next(iter(refused.values()), "there is no norm"))
    costs: dict[str, float] = {}
    with running(subject.model, False), subject.model.register_forward_pre_hook(tokens.enter, with_kwargs=True):
        subject.reference  # noqa: B018
        for path, seen in divisors.items():
            norm, frozen = subject.model.get_submodule(path), seen.frozen()
            with norm.register_forward_hook(lambda _, inputs, __, frozen=frozen: frozen(inputs[0])):
                costs[path], loss = subject.change()
            subject.note(path, "norm", cost=costs[path], cost_loss=loss)
    parts = [f"{len(subject.norms)} batch norms fold exactly"] if subject.norms else []
    if costs:
        top = max(costs, key=costs.__getitem__)
        most = f"changes the output by {costs[top]:.2g} at most, in {top}"
        parts.append(f"a constant divisor in one of {len(costs)} norms {most}")
    return "; ".join([*parts, *([f"{len(refused)} not measured"] if refused else [])])
    yield  # A check is a generator.
