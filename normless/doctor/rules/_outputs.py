"""Checks of the outputs: bounded, out of reach, normalized, the same for all examples, and invariant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import inf, isfinite, log, nan

import torch
from torch import Tensor
from torch.nn import functional as F

from normless.doctor._findings import Finding, FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.facts._changes import change_of
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._flow import PRODUCTS, TensorCall
from normless.doctor.facts._guessing import descend, lowest_within
from normless.doctor.facts._relations import explained
from normless.doctor.facts._tracer import REFUSED, with_leaf

# Outputs count as equal if they differ between examples by less than this share of their size.
SAME = 1e-6
# Functions that losses apply to logits.
TAKES_LOGITS = {
    "cross_entropy", "log_softmax", "softmax", "logsumexp", "logsigmoid", "sigmoid",
    "binary_cross_entropy_with_logits", "multilabel_soft_margin_loss",
}  # fmt: skip
# Bounds count if they keep the loss above the lowest by more than this share of the loss of guessing.
OUT_OF_REACH = 0.1
# Outputs of this size suffice for logits; a loss that falls without bound shows at a multiple of it.
NEAR, FAR = 50.0, 100.0
# The targets depend on a statistic of the inputs if it explains this share of their variance.
EXPLAINED = 0.5
# Fewer examples may agree by chance.
SEVERAL = 16
# Outputs are invariant if they change by less than this share of their differences between examples.
INVARIANT = 1e-2
# Means and norms of outputs count as fixed if they differ by less than this share.
FIXED = 1e-2
MANY_CHANNELS = 16


@check("the last activation", needs="pass")
def check_last_activation(exam: Examination) -> Steps:
    """Look for a softmax or an activation between the classifier and a loss that takes logits."""
    if squashed := _squashed(exam):
        call, reader = squashed
        kind = "softmax_before_loss" if call.layer == "softmax" else "activation_after_classifier"
        yield finding(kind, (call.place,), {"activation": call.name, "read_by": reader})
        return f"{call.name}, and the loss takes logits"
    last = exam.last.origin()
    if last.range.is_bounded and last.range.source is not None and exam.passed.error is None:
        yield from _out_of_reach(exam, last.range.low, last.range.high, last.range.source)
    if last.layer not in ("activation", "softmax") or last.name == "log_softmax":
        return "none: the last operation is a layer"
    return f"{last.name}, and the loss takes its values"


def _out_of_reach(exam: Examination, low: float, high: float, source: TensorCall) -> Iterator[Finding]:
    """Report outputs that are bounded, if the loss within the bounds is far above the lowest that others have."""
    outputs, targets = exam.passed.logits, exam.targets
    evidence: FindingEvidence = {"activation": source.plain}
    if low == high:
        yield finding("softmax_over_one", (source.place,), {**evidence, "value": low})
        return
    floor = lowest_within(exam.loss_at, outputs, low, high)
    sizes = [float(t.detach().abs().max()) for t in exam.labels if t.is_floating_point() and t.numel()]
    near = max([NEAR, *(2 * size for size in sizes)])
    others = lowest_within(exam.loss_at, outputs, -inf, inf, near)
    guessing = exam.guessing if isfinite(exam.guessing) and exam.guessing > 0 else abs(exam.passed.loss)
    # A loss that takes no other outputs has no lower value outside the bounds.
    if not floor - max(others, 0.0) > OUT_OF_REACH * guessing > 0:
        return
    if lowest_within(exam.loss_at, outputs, -inf, inf, FAR * near) < others - 0.01 * guessing:
        # The loss falls without bound outside, as with logarithms of probabilities: it means the bounds.
        return
    evidence = {**evidence, "low": low, "high": high, "lowest_loss": floor, "loss_without_bounds": max(others, 0.0)}
    kind = "bounded_logits"
    if isinstance(targets, Tensor) and targets.is_floating_point() and targets.shape == outputs.shape:
        ends = {"smallest_target": float(targets.min()), "largest_target": float(targets.max())}
        evidence, kind = {**evidence, **ends}, "unreachable_targets"
    elif source.name in (*PRODUCTS, "cosine_similarity", "normalize", "sum"):
        kind = "cosine_logits"
    yield finding(kind, (source.place,), evidence)


def _squashed(exam: Examination) -> tuple[TensorCall, str] | None:
    """Find an activation with values that the loss takes for logits, by the calls or by the values of the loss."""
    for call in exam.in_loss:
        if call.name in TAKES_LOGITS:
            made = next((source.origin() for source in call.sources() if source.is_trained), None)
            if made is not None and not made.in_loss and _is_activation(made):
                return made, call.name
    last = exam.last.origin()
    return (last, "the loss") if _is_activation(last) and takes_logits(exam) else None


def _is_activation(call: TensorCall) -> bool:
    """Whether a call bounds or rectifies values that a loss may take for logits; a clamp does so on purpose."""
    return call.layer in ("activation", "softmax") and call.name not in ("log_softmax", "clamp", "hardtanh")


def takes_logits(exam: Examination) -> bool:
    """Whether the loss contains a softmax or a sigmoid, judged by its values.

    For logits of 0, a cross-entropy of K classes is log K and a binary cross-entropy log 2, for any targets, as a
    mean or a sum. A softmax does not change if a constant is added to all logits.
    """
    logits = exam.logits
    try:
        with torch.no_grad():
            zero, value, shifted = (
                float(exam.loss_at(shown)) for shown in (torch.zeros_like(logits), logits, logits + 3.0)
            )
    except REFUSED:
        return exam.loss is F.cross_entropy
    classes = logits.shape[1] if logits.dim() > 1 else 1
    is_softmax = classes > 1 and _counts(zero / log(classes), logits.numel() // classes)
    return (is_softmax and abs(value - shifted) < 1e-4 * abs(value)) or _counts(zero / log(2), logits.numel())


def _counts(ratio: float, values: int) -> bool:
    """Whether a ratio equals 1 or the number of values, to the precision of float32."""
    return any(abs(ratio / count - 1) < 1e-5 for count in (1, max(values, 1)))


@check("outputs by example", needs="pass")
def check_dependence(exam: Examination) -> Steps:
    """Look for outputs that are the same for all examples, and for the first layer that makes them so."""
    logits = exam.logits.double()
    if logits.dim() < 1 or len(logits) < 2:
        raise NotAsked("there is one example")
    size, apart = float(logits.abs().max()), float((logits - logits.mean(0)).abs().max())
    summary = f"they differ by up to {apart:.3g}, and are up to {size:.3g}"
    if not torch.isfinite(logits).all() or apart > SAME * size:
        return summary
    layers = [event for event in exam.passed.events if event.call.layer in ("weight", "norm", "activation")]
    if layers and layers[-1].read.spread > SAME and not any(bool(matrix.any()) for matrix in layers[-1].matrices):
        return "the classifier starts at zero, and reads examples that differ"
    weights = {name: p for name, p in exam.model.named_parameters() if p.dim() > 1 or p.numel() == 1}
    if any(exam.passed.gradients.get(name) for name, weight in weights.items() if not bool(weight.any())):
        return f"{summary}: weights that start at zero, and get a gradient, keep the inputs from them"
    place = next((event.place for event in layers if min(event.made.spread, event.read.spread) <= SAME), "forward")
    yield finding("input_independent_outputs", (place,), {"largest_output": size, "largest_difference": apart})
    return summary


@check("invariances", needs="pass")
def check_invariance(exam: Examination) -> Steps:
    """Look for outputs that do not depend on the level or the scale of inputs on which the targets depend."""
    for event in exam.events("norm"):
        if event.call.name not in ("batch_norm", "rms_norm") and event.normalized == 2:
            # It leaves one bit of the two values.
            yield finding(
                "norm_of_two", (event.place,), {"norm": event.call.name, "shape": str(event.call.reads[0][1])}
            )
            break
    yield from _fixed_outputs(exam)
    summary = "no level or scale of the inputs explains the targets"
    targets = next((y for y in exam.labels if y.dim() and y.numel() == len(y) >= SEVERAL), torch.zeros(0))
    if not targets.is_floating_point() and not 1 < len(torch.unique(targets)) <= len(targets) // 4:
        return summary
    for number, x in enumerate(exam.given):
        is_usual = x.is_floating_point() and x.layout == torch.strided and x.dim() > 1 and x[0].numel() > 2
        for kind, statistic in _statistics(x) if is_usual and len(x) == len(targets) else ():
            share = float(explained(statistic[:, None], targets.detach().reshape(-1)))
            if not share > EXPLAINED or _neighbors_agree(x, targets):
                continue
            change = _change(exam, number, x, kind)
            if change < INVARIANT:
                norm = next(iter(exam.events("norm")), None)
                evidence: FindingEvidence = {"statistic": kind, "explained": share, "change": change}
                at = f" (the first norm is {norm.call.name} at {norm.place})" if norm else ""
                yield finding("invariant_outputs", norm.call.where if norm else (), evidence, at=at)
                return f"the outputs do not depend on the {kind} of an example"
            summary = "the targets depend on a level or scale of the inputs, and so do the outputs"
    return summary


def _statistics(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Return the levels and the scale of each example."""
    flat = x.detach().double().flatten(1)
    yield "level", flat.mean(1)
    if x.dim() > 2 and 1 < x.shape[1] <= MANY_CHANNELS:
        for channel in x.detach().double().flatten(2).mean(2).T:
            yield "level", channel
    yield "scale", flat.std(1).clamp_min(1e-30).log()


def _neighbors_agree(x: Tensor, targets: Tensor) -> bool:
    """Whether nearest neighbors among the normalized examples have similar targets."""
    flat = x.detach().double().flatten(1)
    flat = F.layer_norm(flat, flat.shape[1:])
    y = targets.detach().reshape(-1)
    nearest = y[torch.cdist(flat, flat).fill_diagonal_(torch.inf).argmin(1)]
    if y.is_floating_point():
        return float(torch.stack([y.double(), nearest.double()]).corrcoef()[0, 1]) > EXPLAINED
    chance = float((y[:, None] == y).double().mean())
    return float((y == nearest).double().mean()) > (1 + chance) / 2


def _change(exam: Examination, number: int, x: Tensor, kind: str) -> float:
    """Return the change of the outputs if each example gets another level or scale, relative to their differences."""
    shape = (len(x), x.shape[1] if kind == "level" and x.dim() > 2 else 1, *(1 for _ in x.shape[2:]))
    draws = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(x)
    changed = x.detach() + x.detach().std() * draws if kind == "level" else x.detach() * draws.exp()
    change = float(change_of(exam, with_leaf(exam.inputs, number, changed)).max())
    return change / exam.apart if exam.apart > 0 else nan


def _fixed_outputs(exam: Examination) -> Iterator[Finding]:
    """Report outputs whose mean and deviation are the same for all examples, if the best such outputs fit badly."""
    outputs = exam.logits.double()
    if outputs.dim() != 2 or len(outputs) < 4 or outputs.shape[1] < 3 or exam.passed.error is not None:
        return
    means, deviations = outputs.mean(1), outputs.std(1)
    size = float(deviations.mean())
    if not size > 0 or max(float(means.std()), float(deviations.std())) > FIXED * size:
        return
    norm = next(reversed(exam.events("norm")), None)
    if norm is None or not isfinite(exam.guessing) or not isfinite(exam.lowest):
        return
    floor = _lowest_fixed(exam, trained=any(p.requires_grad for p in norm.parameters), size=size)
    if floor - max(exam.lowest, 0.0) > OUT_OF_REACH * exam.guessing > 0:
        evidence: FindingEvidence = {"lowest_loss": floor, "guessing": exam.guessing, "outputs": outputs.shape[1]}
        yield finding("normalized_outputs", norm.call.where, {**evidence, "norm": norm.call.name})


def _lowest_fixed(exam: Examination, *, trained: bool, size: float) -> float:
    """Return the lowest loss of outputs that are normalized, with a trained factor and offset or without."""
    outputs = exam.logits.float()
    free = outputs.clone().requires_grad_()
    scale = torch.full_like(outputs[:1], size).requires_grad_()
    offset = torch.full_like(scale, float(outputs.mean())).requires_grad_()
    found: list[float] = []

    def loss() -> Tensor:
        normalized = F.layer_norm(free, free.shape[1:]) * scale + offset
        return exam.loss_at(normalized.to(exam.logits.dtype))

    with suppress(*REFUSED):
        descend(loss, [free, scale, offset] if trained else [free], found, steps=60)
    return min(filter(isfinite, found), default=nan)
