"""Modes and norms: evaluation left on, statistics that do not move, norms of single elements, mixed examples."""

from __future__ import annotations

from contextlib import suppress
from math import inf, isfinite, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from normless.arguments import arguments_of
from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import NotAsked, Steps, check, finding
from normless.diagnosis.flow import tensors
from normless.probes import mixes_examples, preserve_state

# A running average of a momentum below this has hardly moved after an epoch.
SLOW = 1e-3
DROPPED = 0.9
# Outputs of both modes that differ by more than the examples do, after statistics have seen so many times 1/momentum.
APART, SEEN = 1.0, 3.0
# From 8 examples on the noise of a statistic is below one half; with fewer, accuracy drops (De & Smith, figure 7).
ENOUGH = 8


@check("modes")
def check_modes(e: Examination) -> Steps:
    """Look for norms left in evaluation before they saw data, dropout of nearly all, and modes that differ."""
    norms = {name: module for name, module in e.model.named_modules() if isinstance(module, _BatchNorm)}
    tracked = {name: norm for name, norm in norms.items() if norm.num_batches_tracked is not None}
    left = [name for name, norm in tracked.items() if not norm.training and not int(norm.num_batches_tracked)]  # type: ignore[arg-type]
    if left:
        yield finding("evaluation_mode", 0.9, left, {"norms": len(left)})
    dropped = [event for event in e.passed.events if event.rate >= DROPPED]
    if dropped:
        rate = max(event.rate for event in dropped)
        yield finding("heavy_dropout", 0.84, (dropped[0].place,), {"rate": rate})
    summary = f"{sum(module.training for module in e.model.modules())} modules in training"
    moved = [norm for norm in tracked.values() if _has_moved(norm)]
    if moved and not left and not any(event.rate for event in e.passed.events) and isfinite(e.passed.loss):
        before = e.passed.logits.detach().double()
        apart, size = float((e.evaluated - before).norm()), float((before - before.mean(0)).norm())
        share = apart / size if size else inf
        summary += f"; outputs differ from those in evaluation by {share:.2f} of their deviation"
        if apart > APART * size:
            yield finding("modes_differ", 0.83, (), {"difference": share, "norms": len(moved)})
    return summary


def _has_moved(norm: _BatchNorm) -> bool:
    """Whether the running statistics have forgotten their initial values."""
    batches = int(norm.num_batches_tracked) if norm.num_batches_tracked is not None else 0
    return batches * (norm.momentum or 1.0 / max(batches, 1)) >= SEEN or (norm.momentum is None and batches > 0)


@check("norms")
def check_norms(e: Examination) -> Steps:
    """Look for norms of single elements, γ that are zero for ever, and running statistics that never move."""
    events = [event for event in e.passed.events if event.kind == "norm"]
    if not events:
        raise NotAsked("none ran")
    single = [event.place for event in events if event.normalized == 1]
    if single:
        yield finding("single_element_norm", 0.95, single[:1], {"norms": len(single)})
    zero = list(dict.fromkeys(event.place for event in events if _is_closed(event.parameters)))
    if zero:
        yield finding("zero_gamma", 0.95, zero, {"norms": len(zero)})
    slow = {
        name: float(module.momentum)
        for name, module in e.model.named_modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
        if module.momentum is not None and module.momentum < SLOW
    }
    if slow:
        evidence = {"norms": len(slow), "momentum": max(slow.values())}
        yield finding("frozen_statistics", 0.82, list(slow), evidence)
    return f"{len(events)} norms ran"


def _is_closed(parameters: tuple[Tensor, ...]) -> bool:
    return bool(parameters) and not parameters[0].requires_grad and not bool(parameters[0].any())


@check("batch statistics")
def check_statistics(e: Examination) -> Steps:
    """Count the examples that the statistics of each batch norm are computed from."""
    sizes = {}
    for event in e.passed.events:
        if event.name == "batch_norm" and event.normalized is not None:
            module = e.model.get_submodule(event.path)
            sizes[event.place] = min(getattr(module, "ghost_size", event.shape[0]), event.shape[0]), event.normalized
    if not sizes:
        raise NotAsked("no batch norm in training mode")
    examples = min(count for count, _ in sizes.values())
    few = {name: size for name, size in sizes.items() if size[0] < ENOUGH}
    if few:
        smallest = min(few, key=lambda name: few[name][1])
        evidence: dict[str, float | int | str] = {
            "examples": examples,
            "norms": len(few),
            "relative_deviation_of_variance": sqrt(2 / (examples - 1)) if examples > 1 else inf,
            "values_in_smallest": few[smallest][1],
            "smallest": smallest,
        }
        severity, words = 0.85 if examples == 1 else 0.7 - 0.05 * examples, "examples" if examples > 1 else "example"
        yield finding("small_batch", severity, list(few), evidence, example_or_examples=words)
    return f"{len(sizes)} batch norms, {examples} examples or more for each statistic"


@check("examples")
def check_examples(e: Examination) -> Steps:
    """Whether outputs of other examples change, in evaluation, when the first is replaced by the second."""
    read = [one for one in tensors(e.inputs) if one.dim()]
    if not read or len(read[0]) < 3:
        raise NotAsked("there are fewer than three examples")
    count = len(read[0])

    def replaced(one: Any) -> Any:
        has_examples = isinstance(one, Tensor) and one.dim() and len(one) == count
        return torch.cat([one[1:2], one[1:]]) if has_examples else one

    before, after = e.evaluated, e.evaluate(tree_map(replaced, e.inputs))
    if not before.dim() or len(before) != count or before.shape != after.shape:
        raise NotAsked("the outputs are not by example")
    size, change = float(before.abs().max()), float((before - after)[1:].abs().max())
    if not change > 1e-4 * size:
        return "none depends on another one in evaluation mode"
    yield finding("mixes_examples", 0.89, _mixing(e, count), {"change": change, "outputs": size})
    return "they depend on each other"


def _mixing(e: Examination, count: int) -> list[str]:
    """The modules through which examples influence each other."""

    def few(one: Any) -> Any:
        return one[:4] if isinstance(one, Tensor) and one.dim() and len(one) == count else one

    positional, named = arguments_of(tree_map(few, e.inputs))
    with suppress(ValueError, RuntimeError), preserve_state(e.model, training=False):
        return [module.path or "forward" for module in mixes_examples(e.model, *positional, **named).modules]
    return ["forward"]
