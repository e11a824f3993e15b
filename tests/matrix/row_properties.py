"""What holds of every network of the gallery before a scheme."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from gallery import goldens
from gallery.row import differences
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import normless as nl
from matrix.case import Subject, changed, difference, state_of
from normless._internal.copying import copied
from normless.residual import Layer


def map_is_as_stated(subject: Subject) -> None:
    """The blocks, roles, heads that a person states; each norm that runs has a role; no layer is in two places."""
    found = subject.found
    assert differences(subject.row, found) == []
    calls = [(layer.path, layer.call) for layer in found.layers()]
    assert len(calls) == len(set(calls))
    names = [block.name for block in found.walk()]
    assert len(names) == len(set(names))
    for block in found.walk():
        for inner in block.inner:
            assert set(inner.branch_layers + inner.skip_layers) <= set(block.branch_layers)
    with_role = {layer.gamma for layer in found.layers() if layer.kind in ("norm", "direction")}
    assert {f"{path}.weight" for path in _norms_that_run(subject)} <= with_role


def _norms_that_run(subject: Subject) -> set[str]:
    """The modules with a γ that call themselves a norm and run in a forward pass."""
    norms, model = set[str](), copied(subject.model)
    for path, module in model.named_modules():
        gamma = getattr(module, "weight", None)
        if "norm" in type(module).__name__.lower() and isinstance(gamma, nn.Parameter) and gamma.dim() == 1:
            module.register_forward_hook(lambda *_, path=path: norms.add(path))
    with torch.no_grad():
        subject.run(model)
    return norms


def snapshot_is_the_committed_one(subject: Subject) -> None:
    """Map, plans and changes are those that were reviewed."""
    made = goldens.snapshot(subject.row, subject.found, subject.convert)
    assert made == goldens.read(subject.row.kind).get(subject.row.name), "`make goldens` rewrites it"


def both_modes_show_the_same_blocks(subject: Subject) -> None:
    """In evaluation the map is that of training, but for dropout."""
    model = copied(subject.model).eval()
    found = nl.residual_map(model, *subject.inputs, **subject.kwargs)
    assert [_plain(block) for block in found.blocks] == [_plain(block) for block in subject.found.blocks]
    assert found.norms == subject.found.norms


def _plain(block: nl.ResidualBlock) -> tuple[Any, ...]:
    """A block without its dropout, and without what dropout hides: whose output a layer reads unchanged."""
    paths = (block.branch_layers, block.skip_layers, block.shared_layers, block.after_sum, *block.branches)
    layers = [tuple(_named(path)) for path in paths]
    return (block.name, block.identity_skip, block.m, layers, [_plain(inner) for inner in block.inner])


def _named(layers: tuple[Layer, ...]) -> Iterator[tuple[Any, ...]]:
    for layer in layers:
        if layer.kind != "dropout":
            yield layer.path, layer.kind, layer.call, layer.gating, layer.gamma


def calls_leave_the_network(subject: Subject) -> None:
    """Mapping, planning and grouping change nothing: neither values, modes, hooks nor the states of random numbers.

    A mode that is not the same all through survives as well.
    """
    model, mapped = subject.model, subject.found
    inputs, kwargs = subject.inputs, subject.kwargs
    uneven = copied(model)
    next(uneven.children()).eval()
    calls: dict[str, Callable[[], Any]] = {
        "residual_map": lambda: nl.residual_map(uneven, *inputs, **kwargs),
        "param_groups": lambda: nl.param_groups(uneven, lr=0.1, weight_decay=0.0, residual_map=mapped),
        "mixes_examples": lambda: nl.mixes_examples(uneven, *inputs, **kwargs),
        "freeze": lambda: nl.freeze(uneven),
    }
    for name, call in calls.items():
        before = state_of(uneven)
        try:
            call()
        except (nl.NormlessError, ValueError):
            assert name in ("mixes_examples", "freeze"), name
        assert changed(before, state_of(uneven)) == [], name


def fold_is_the_network_in_evaluation(subject: Subject) -> None:
    """Norms that have seen data go into the weights; a batch norm is left nowhere, and training has no statistics."""
    used = copied(subject.model).to(subject.dtype)
    if not any(isinstance(module, _BatchNorm) for module in used.modules()):
        return
    torch.manual_seed(4)
    with torch.no_grad():
        for module in used.modules():
            if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None:
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(1, 4)
                if module.affine:
                    module.weight.uniform_(0.5, 1.5)
                    module.bias.normal_(0, 0.3)
    example = [_as(value, subject.dtype) for value in subject.inputs]
    named = {name: _as(value, subject.dtype) for name, value in subject.kwargs.items()}
    before = state_of(used.eval())
    folded, report = nl.fold(used, *example, **named)
    assert not set(changed(before, state_of(used))) - {"torch's random state"}
    norms = {path for path, module in used.named_modules() if isinstance(module, _BatchNorm)}
    assert {norm.path for norm in report.norms if norm.outcome != "kept"} <= norms
    assert subject.row.affine in (None, report.counts["affine"]), str(report)
    ran = {norm.path for norm in report.norms}
    left = {path for path, module in folded.named_modules() if isinstance(module, _BatchNorm)}
    assert not left & ran
    with torch.no_grad():
        ours, theirs = (subject.run(net.eval(), subject.dtype) for net in (folded, used))
    assert difference(ours, theirs) < max(subject.row.rounding, 1e-8 if subject.dtype == torch.float64 else 1e-3)


def _as(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def a_healthy_training_learns(subject: Subject) -> None:
    """The loss on the batch falls within twenty steps."""
    net = copied(subject.model)
    optimizer, losses = subject.row.optimizer(net.parameters()), []
    torch.manual_seed(5)
    random.seed(5)
    for _ in range(20):
        optimizer.zero_grad()
        loss = subject.loss(net)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert min(losses[10:]) < losses[0], losses


QUICK = (map_is_as_stated, snapshot_is_the_committed_one, fold_is_the_network_in_evaluation)
SLOW = (both_modes_show_the_same_blocks, calls_leave_the_network, a_healthy_training_learns)
