"""Checks of modes and norms: evaluation mode, fixed statistics, norms of single elements, mixed examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isfinite, sqrt

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import tensors
from normless.doctor.findings import NotAsked, Steps, check, finding
from normless.residual.batch_statistics import keeps_statistics, takes_batch_statistics

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


@check("modes")
def check_modes(exam: Examination) -> Steps:
    """Look for norms in evaluation mode before they saw data, excessive dropout, and modes that differ."""
    norms = {name: module for name, module in exam.model.named_modules() if isinstance(module, _BatchNorm)}
    tracked = {name: norm for name, norm in norms.items() if norm.num_batches_tracked is not None}
    left = [name for name, norm in tracked.items() if not norm.training and not int(norm.num_batches_tracked)]  # type: ignore[arg-type]
    if left:
        yield finding("evaluation_mode", left, {"norms": len(left)})
    still = [name for name, module in exam.model.named_modules() if _is_still(module)]
    if still:
        yield finding("initial_frozen_norms", still, {"norms": len(still)})
    dropped = [event for event in exam.passed.events if event.rate >= DROPPED]
    if dropped:
        rate = max(event.rate for event in dropped)
        yield finding("heavy_dropout", (dropped[0].place,), {"rate": rate})
    summary = f"{sum(module.training for module in exam.model.modules())} modules in training"
    if exam.evaluated.numel() and exam.dropped:
        yield finding("dropout_in_evaluation", list(exam.dropped), {"rate": max(exam.dropped.values())})
    lagging = {name: norm for name, norm in tracked.items() if _lags(norm)}
    if lagging and exam.evaluated_loss is not None and _is_far_above(exam, exam.evaluated_loss):
        slowest = min(lagging.values(), key=_left_of_initial)
        evidence: dict[str, float | int | str] = {"norms": len(lagging), "batches": _batches(slowest)}
        evidence |= {"momentum": slowest.momentum or 0.0, "share": _left_of_initial(slowest)}
        evidence |= {"training": exam.passed.loss, "evaluation": exam.evaluated_loss}
        yield finding("lagging_statistics", list(lagging), evidence)
        return summary
    moved = [norm for norm in tracked.values() if _has_moved(norm)]
    if left or not isfinite(exam.passed.loss):
        return summary
    if moved and not any(event.rate for event in exam.passed.events):
        before = exam.passed.logits.detach().double()
        apart, size = float((exam.evaluated - before).norm()), float((before - before.mean(0)).norm())
        share = apart / size if size else inf
        summary += f"; outputs differ from those in evaluation by {share:.2f} of their deviation"
        if apart > APART * size:
            yield finding("modes_differ", (), {"difference": share, "norms": len(moved)})
            return summary
    has_fresh_statistics = any(hasattr(module, "running_mean") for module in exam.model.modules()) and not moved
    if exam.evaluated_loss is not None and not has_fresh_statistics:
        summary += f"; the loss is {exam.passed.loss:.3g}, in evaluation {exam.evaluated_loss:.3g}"
        if _is_far_above(exam, exam.evaluated_loss):
            evidence = {"training": exam.passed.loss, "evaluation": exam.evaluated_loss, "norms": len(moved)}
            yield finding("loss_in_evaluation", (), evidence)
    return summary


def _is_still(module: nn.Module) -> bool:
    """Whether a module is a frozen norm with the statistics of a fresh one: mean 0 and variance 1."""
    if isinstance(module, _BatchNorm) or not keeps_statistics(module):
        return False
    mean, variance = (getattr(module, name) for name in ("running_mean", "running_var"))
    is_fresh = not bool(mean.any()) and bool((variance == 1).all())
    return is_fresh and not takes_batch_statistics(module)


def _is_far_above(exam: Examination, evaluated: float) -> bool:
    """Whether a loss in evaluation is far above that of the same batch in training."""
    trained = exam.passed.loss
    return evaluated > TIMES * abs(trained) and evaluated - trained > SHARE * exam.guessing


@check("frozen norms")
def check_frozen_norms(exam: Examination) -> Steps:
    """Look for frozen norms with statistics that change."""
    names = dict(exam.model.named_modules())
    stored = {
        name: module for name, module in names.items() if isinstance(getattr(module, "running_var", None), Tensor)
    }
    if not stored:
        raise NotAsked("there are no running statistics")
    moving = [name for name, norm in stored.items() if is_frozen(norm) and norm.training]
    moving = [name for name in moving if f"{name}.running_mean".lstrip(".") in exam.passed.moved]
    if moving and exam.model.training and any(parameter.requires_grad for parameter in exam.model.parameters()):
        found = finding("moving_frozen_norms", moving, {"norms": len(moving)})
        # The weights of a copy follow those of the network that is trained, and its statistics with them.
        yield replace(found, advice=all(_is_of_a_copy(name, stored) for name in moving))
    return f"{len(stored)} norms with running statistics, {len(moving)} of them frozen but changing"


def _is_of_a_copy(name: str, norms: Mapping[str, nn.Module]) -> bool:
    """Whether another part of the network has a norm of the same name and size that is trained."""
    own = name.partition(".")[2]
    return any(
        other.partition(".")[2] == own != "" and not is_frozen(norm) and _size(norm) == _size(norms[name])
        for other, norm in norms.items()
    )


def _size(norm: nn.Module) -> int:
    mean = norm.running_mean
    return mean.numel() if isinstance(mean, Tensor) else 0


def is_frozen(norm: nn.Module) -> bool:
    """Whether a norm has parameters and trains none of them."""
    own = list(norm.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def _batches(norm: _BatchNorm) -> int:
    """Return the number of batches that the running statistics have seen; 0 if it is not counted."""
    return int(norm.num_batches_tracked) if norm.num_batches_tracked is not None else 0


def _has_moved(norm: _BatchNorm) -> bool:
    """Whether the running statistics no longer depend on their initial values."""
    batches = _batches(norm)
    return batches * (norm.momentum or 1.0 / max(batches, 1)) >= SEEN or (norm.momentum is None and batches > 0)


def _left_of_initial(norm: _BatchNorm) -> float:
    """Return the share of the initial values in the running statistics."""
    return float((1 - (norm.momentum or 0.0)) ** _batches(norm))


def _lags(norm: _BatchNorm) -> bool:
    """Whether the statistics move so slowly that several batches left most of the initial values."""
    is_slow = norm.momentum is not None and norm.momentum < LAGGING
    return is_slow and _batches(norm) >= SEVERAL and _left_of_initial(norm) > 0.5


@check("norms")
def check_norms(exam: Examination) -> Steps:
    """Look for norms of single elements, γ that stay zero, and running statistics that never change."""
    events = [event for event in exam.passed.events if event.kind == "norm"]
    if not events:
        raise NotAsked("no norm ran")
    single = [event.place for event in events if event.normalized == 1]
    if single:
        yield finding("single_element_norm", single[:1], {"norms": len(single)})
    zero = list(dict.fromkeys(event.place for event in events if _is_closed(event.parameters)))
    if zero:
        yield finding("zero_gamma", zero, {"norms": len(zero)})
    momenta = {
        name: float(module.momentum)
        for name, module in exam.model.named_modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
        if module.momentum is not None
    }
    slow = {name: momentum for name, momentum in momenta.items() if momentum < SLOW}
    if slow:
        evidence = {"norms": len(slow), "momentum": max(slow.values())}
        yield finding("frozen_statistics", list(slow), evidence)
    last = {name: momentum for name, momentum in momenta.items() if LAST <= momentum < 1}
    if last:
        evidence = {"norms": len(last), "momentum": min(last.values())}
        yield finding("last_batch_statistics", list(last), evidence)
    return f"{len(events)} norms ran"


def _is_closed(parameters: tuple[Tensor, ...]) -> bool:
    return bool(parameters) and not parameters[0].requires_grad and not bool(parameters[0].any())


@check("batch statistics")
def check_statistics(exam: Examination) -> Steps:
    """Count the examples from which each batch norm computes its statistics."""
    sizes = {}
    for event in exam.passed.events:
        if event.name == "batch_norm" and event.normalized is not None:
            module = exam.model.get_submodule(event.path)
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
        words = "examples" if examples > 1 else "example"
        yield finding("small_batch", list(few), evidence, grade=1 / max(examples, 1), example_or_examples=words)
    return f"{len(sizes)} batch norms, {examples} examples or more for each statistic"


@check("state between passes", blocks=True)
def check_state(exam: Examination) -> Steps:
    """Look for state that keeps the history of the last pass, and that the next pass reads."""
    kept = [f"{path}.{name}".lstrip(".") for path, name in _with_history(exam)]
    size = float(exam.evaluated.abs().max()) if kept and exam.evaluated.numel() else 0.0
    again = exam.evaluate(exam.inputs) if kept else None
    if again is not None and not torch.allclose(exam.evaluated, again, rtol=1e-4, atol=1e-4 * size):
        yield finding("undetached_state", kept, {"tensors": len(kept)})
        return "the next pass reads the history of this one"
    return f"{len(kept)} tensors with a history are kept"


def _with_history(exam: Examination) -> list[tuple[str, str]]:
    """Return the modules and names of attributes that hold results of the recorded pass."""
    return [
        (path, name)
        for path, module in exam.model.named_modules()
        if exam.passed.logits.requires_grad
        for name, value in vars(module).items()
        if not name.startswith("_") and any(tensor.grad_fn is not None for tensor in tensors(value))
    ]
