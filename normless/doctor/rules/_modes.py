"""Checks of modes and norms: evaluation mode, fixed statistics, norms of single elements, kept state."""

from __future__ import annotations

from math import inf, isfinite, sqrt

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.doctor._findings import FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._tracer import tensors
from normless.residual._batch_statistics import keeps_statistics, takes_batch_statistics

# With a momentum below this, a running average hardly changes in an epoch.
SLOW = 1e-3
# Below this momentum, SEVERAL batches that leave most of the initial statistics are not a short training.
LAGGING, SEVERAL = 3e-3, 10
# From this momentum, running averages are those of the last batch; 1 is a choice.
LAST = 0.95
DROPPED = 0.9
# Modes differ if their outputs differ by more than the examples do, after SEEN / momentum batches.
APART, SEEN = 1.0, 3.0
# A loss in evaluation is far above the loss in training by this factor, and by this share of the loss of guessing.
TIMES, SHARE = 2.0, 0.25
# From 8 examples, the noise of a statistic is below one half; with fewer, accuracy drops (De & Smith, figure 7).
ENOUGH = 8


@check("modes", needs="pass")
def check_modes(exam: Examination) -> Steps:
    """Look for norms in evaluation mode before they saw data, excessive dropout, and modes that differ."""
    modules = dict(exam.model.named_modules())
    norms = {name: norm for name, norm in modules.items() if isinstance(norm, _BatchNorm)}
    tracked = {name: norm for name, norm in norms.items() if norm.num_batches_tracked is not None}
    left = [name for name, norm in tracked.items() if not norm.training and not _batches(norm)]
    if left:
        yield finding("evaluation_mode", left, {"norms": len(left)})
    if still := [name for name, module in modules.items() if _is_still(module)]:
        yield finding("initial_frozen_norms", still, {"norms": len(still)})
    if dropped := [event for event in exam.events("dropout") if event.rate >= DROPPED]:
        yield finding("heavy_dropout", (dropped[0].place,), {"rate": max(event.rate for event in dropped)})
    if exam.evaluated.numel() and exam.dropped:
        yield finding("dropout_in_evaluation", list(exam.dropped), {"rate": max(exam.dropped.values())})
    summary = f"{sum(module.training for module in modules.values())} modules in training"
    trained, evaluated = exam.passed.loss, exam.evaluated_loss
    is_worse = evaluated is not None and evaluated > TIMES * abs(trained)
    is_far_above = is_worse and (evaluated or 0.0) - trained > SHARE * exam.guessing
    losses: FindingEvidence = {"training": trained, "evaluation": evaluated or 0.0}
    if lagging := {name: norm for name, norm in tracked.items() if is_far_above and _lags(norm)}:
        slowest = min(lagging.values(), key=_left_of_initial)
        evidence: FindingEvidence = {"norms": len(lagging), "batches": _batches(slowest), **losses}
        state = {"momentum": slowest.momentum or 0.0, "share": _left_of_initial(slowest)}
        yield finding("lagging_statistics", list(lagging), {**evidence, **state})
    elif not left and isfinite(trained):
        moved = [norm for norm in tracked.values() if _has_moved(norm)]
        if moved and not any(event.rate for event in exam.events("dropout")):
            before = exam.logits.double()
            apart, size = float((exam.evaluated - before).norm()), float((before - before.mean(0)).norm())
            share = apart / size if size else inf
            summary += f"; outputs differ from those in evaluation by {share:.2f} of their deviation"
            if apart > APART * size:
                yield finding("modes_differ", (), {"difference": share, "norms": len(moved)})
                return summary
        are_fresh = any(hasattr(module, "running_mean") for module in modules.values()) and not moved
        if is_far_above and not are_fresh:
            yield finding("loss_in_evaluation", (), {**losses, "norms": len(moved)})
    return summary


def _is_still(module: nn.Module) -> bool:
    """Whether a module is a frozen norm with the statistics of a fresh one: mean 0 and variance 1."""
    if isinstance(module, _BatchNorm) or not keeps_statistics(module):
        return False
    mean, variance = (getattr(module, name) for name in ("running_mean", "running_var"))
    return not bool(mean.any()) and bool((variance == 1).all()) and not takes_batch_statistics(module)


@check("frozen norms", needs="pass")
def check_frozen_norms(exam: Examination) -> Steps:
    """Look for frozen norms with statistics that change."""
    modules = exam.model.named_modules()
    stored = {name: module for name, module in modules if isinstance(getattr(module, "running_var", None), Tensor)}
    if not stored:
        raise NotAsked("there are no running statistics")
    trained = {(_inner(name), _size(norm)) for name, norm in stored.items() if not is_frozen(norm)}
    moving = [name for name, norm in stored.items() if is_frozen(norm) and norm.training]
    moving = [name for name in moving if f"{name}.running_mean".lstrip(".") in exam.passed.moved]
    if moving and exam.model.training and exam.trained:
        # The weights of a copy follow those of the network that is trained, and its statistics with them.
        are_copies = all(_inner(name) and (_inner(name), _size(stored[name])) in trained for name in moving)
        yield finding("moving_frozen_norms", moving, {"norms": len(moving)}, advice=are_copies)
    return f"{len(stored)} norms with running statistics, {len(moving)} of them frozen but changing"


def _inner(name: str) -> str:
    """Return the name of a module in its part of the network."""
    return name.partition(".")[2]


def _size(norm: nn.Module) -> int:
    return norm.running_mean.numel() if isinstance(norm.running_mean, Tensor) else 0


def is_frozen(norm: nn.Module) -> bool:
    """Whether a norm has parameters and trains none of them."""
    own = list(norm.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def _batches(norm: _BatchNorm) -> int:
    """Return the number of batches that the running statistics have seen."""
    return int(norm.num_batches_tracked or 0)


def _has_moved(norm: _BatchNorm) -> bool:
    """Whether the running statistics no longer depend on their initial values."""
    batches = _batches(norm)
    return batches > 0 if norm.momentum is None else batches * norm.momentum >= SEEN


def _left_of_initial(norm: _BatchNorm) -> float:
    """Return the share of the initial values in the running statistics."""
    return float((1 - (norm.momentum or 0.0)) ** _batches(norm))


def _lags(norm: _BatchNorm) -> bool:
    """Whether the statistics move so slowly that several batches left most of the initial values."""
    is_slow = norm.momentum is not None and norm.momentum < LAGGING
    return is_slow and _batches(norm) >= SEVERAL and _left_of_initial(norm) > 0.5


@check("norms", needs="pass")
def check_norms(exam: Examination) -> Steps:
    """Look for norms of single elements, γ that stay zero, and running statistics that never change."""
    events = exam.events("norm")
    if not events:
        raise NotAsked("no norm ran")
    if single := [event.place for event in events if event.normalized == 1]:
        yield finding("single_element_norm", single[:1], {"norms": len(single)})
    fixed = [event for event in events if event.parameters and not event.parameters[0].requires_grad]
    if zero := list(dict.fromkeys(event.place for event in fixed if not bool(event.parameters[0].any()))):
        yield finding("zero_gamma", zero, {"norms": len(zero)})
    momenta = {
        name: float(module.momentum)
        for name, module in exam.model.named_modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
        if module.momentum is not None
    }
    if slow := {name: momentum for name, momentum in momenta.items() if momentum < SLOW}:
        yield finding("frozen_statistics", list(slow), {"norms": len(slow), "momentum": max(slow.values())})
    if last := {name: momentum for name, momentum in momenta.items() if LAST <= momentum < 1}:
        yield finding("last_batch_statistics", list(last), {"norms": len(last), "momentum": min(last.values())})
    return f"{len(events)} norms ran"


@check("batch statistics", needs="pass")
def check_statistics(exam: Examination) -> Steps:
    """Count the examples from which each batch norm computes its statistics."""
    sizes = {}
    for event in exam.events("norm"):
        if event.call.name == "batch_norm" and event.normalized is not None:
            count = event.call.reads[0][1][0]
            ghost = getattr(exam.model.get_submodule(event.call.path), "ghost_size", count)
            sizes[event.place] = min(ghost, count), event.normalized
    if not sizes:
        raise NotAsked("no batch norm in training mode")
    examples = min(count for count, _ in sizes.values())
    if few := {name: values for name, (count, values) in sizes.items() if count < ENOUGH}:
        smallest = min(few, key=few.__getitem__)
        noise = sqrt(2 / (examples - 1)) if examples > 1 else inf
        evidence: FindingEvidence = {"examples": examples, "norms": len(few), "relative_deviation_of_variance": noise}
        evidence = {**evidence, "values_in_smallest": few[smallest], "smallest": smallest}
        words = "examples" if examples > 1 else "example"
        yield finding("small_batch", list(few), evidence, grade=1 / max(examples, 1), example_or_examples=words)
    return f"{len(sizes)} batch norms, {examples} examples or more for each statistic"


@check("state between passes", needs="state", blocks=True)
def check_state(exam: Examination) -> Steps:
    """Look for state that keeps the history of the last pass, and that the next pass reads."""
    kept = [
        f"{path}.{name}".lstrip(".")
        for path, module in exam.model.named_modules()
        if exam.passed.logits.requires_grad
        for name, value in vars(module).items()
        if not name.startswith("_") and any(tensor.grad_fn is not None for tensor in tensors(value))
    ]
    if kept and exam.evaluated.numel():
        again = exam.evaluate(exam.inputs)
        if not torch.allclose(exam.evaluated, again, rtol=1e-4, atol=1e-4 * exam.size):
            yield finding("undetached_state", kept, {"tensors": len(kept)})
            return "the next pass reads the history of this one"
    return f"{len(kept)} tensors with a history are kept"
