"""Checks of the outputs: bounded logits, targets out of reach, outputs that ignore the input, and equal units."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite, log

import torch
from torch import Tensor
from torch.nn import functional as F

from normless._internal.copying import copied
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import Call
from normless.doctor.facts.functions import PRODUCTS
from normless.doctor.facts.guessing import lowest_within
from normless.doctor.facts.tracer import REFUSED
from normless.doctor.findings import Evidence, Finding, NotAsked, Steps, check, finding

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


@check("the last activation")
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


def _out_of_reach(exam: Examination, low: float, high: float, source: Call) -> Iterator[Finding]:
    """Report outputs that are bounded, if the loss within the bounds is far above the lowest that others have."""
    outputs, targets = exam.passed.logits, exam.targets
    evidence: Evidence = {"activation": source.plain}
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
        evidence = {
            **evidence,
            "smallest_target": float(targets.min()),
            "largest_target": float(targets.max()),
        }
        kind = "unreachable_targets"
    elif source.name in (*PRODUCTS, "cosine_similarity", "normalize", "sum"):
        kind = "cosine_logits"
    yield finding(kind, (source.place,), evidence)


def _squashed(exam: Examination) -> tuple[Call, str] | None:
    """Find an activation with values that the loss takes for logits, by the calls or by the values of the loss."""
    for call in exam.in_loss:
        if call.name in TAKES_LOGITS:
            made = next((source.origin() for source in call.sources() if source.is_trained), None)
            if made is not None and not made.in_loss and _is_activation(made):
                return made, call.name
    last = exam.last.origin()
    return (last, "the loss") if _is_activation(last) and takes_logits(exam) else None


def _is_activation(call: Call) -> bool:
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


@check("outputs by example")
def check_dependence(exam: Examination) -> Steps:
    """Look for outputs that are the same for all examples, and for the first layer that makes them so."""
    logits = exam.logits.double()
    if logits.dim() < 1 or len(logits) < 2:
        raise NotAsked("there is one example")
    size, apart = float(logits.abs().max()), float((logits - logits.mean(0)).abs().max())
    summary = f"they differ by up to {apart:.3g}, and are up to {size:.3g}"
    if not torch.isfinite(logits).all() or apart > SAME * size:
        return summary
    layers = [event for event in exam.passed.events if event.kind in ("weight", "norm", "activation")]
    if layers and layers[-1].spread_in > SAME and not any(bool(matrix.any()) for matrix in layers[-1].matrices):
        return "the classifier starts at zero, and reads examples that differ"
    if _opens(exam):
        return f"{summary}: weights that start at zero keep the inputs from them"
    place = next((event.place for event in layers if min(event.spread, event.spread_in) <= SAME), "forward")
    yield finding("input_independent_outputs", (place,), {"largest_output": size, "largest_difference": apart})
    return summary


def _opens(exam: Examination) -> bool:
    """Whether a zero weight or multiplier gets a gradient, and outputs depend on the inputs once these have grown."""
    network, is_growing = copied(exam.model), False
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.requires_grad and (parameter.dim() > 1 or parameter.numel() == 1) and not parameter.any():
                parameter.normal_(0, 0.1, generator=torch.Generator(parameter.device).manual_seed(0))
                is_growing = is_growing or bool(exam.passed.gradients.get(name))
    if not is_growing:
        return False
    opened = exam.evaluate(exam.inputs, network)
    return float((opened - opened.mean(0)).abs().max()) > SAME * float(opened.abs().max())
