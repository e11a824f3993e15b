"""Checks of the outputs: bounded logits, targets out of reach, and outputs that ignore the input."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite, log

import torch
from torch import Tensor
from torch.nn import functional as F

from normless._internal.copying import copied
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, PRODUCTS, Call, tensors
from normless.doctor.facts.ranges import lowest_within
from normless.doctor.facts.tape import KINDS
from normless.doctor.findings import Finding, NotAsked, Steps, check, finding

# Outputs count as equal if they differ between examples by less than this share of their size.
SAME = 1e-6
# Functions that losses apply to logits.
TAKES_LOGITS = {
    "cross_entropy", "log_softmax", "softmax", "logsumexp", "logsigmoid", "sigmoid",
    "binary_cross_entropy_with_logits", "multilabel_soft_margin_loss",
}  # fmt: skip
# An activation, and the name of the function that reads its values as logits.
Squashed = tuple[Call, str]
# Bounds count if they keep the loss above the lowest by more than this share of the loss of guessing.
OUT_OF_REACH = 0.1
# Outputs of this size suffice for logits; a loss that falls without bound shows at a multiple of it.
NEAR, FAR = 50.0, 100.0


@check("the last activation")
def check_last_activation(exam: Examination) -> Steps:
    """Look for a softmax or an activation between the classifier and a loss that takes logits."""
    if squashed := _squashed(exam):
        call, reader = squashed
        kind = "softmax_before_loss" if KINDS[call.name] == "softmax" else "activation_after_classifier"
        yield finding(kind, (call.place,), {"activation": call.name, "read_by": reader})
        return f"{call.name}, and the loss takes logits"
    made = exam.passed.flow.of(exam.passed.logits)
    last = None if made is None else made.origin()
    if last is None:
        return "none was seen"
    yield from _out_of_reach(exam, last)
    if KINDS.get(last.name) not in ("activation", "softmax") or last.name == "log_softmax":
        return "none: the last operation is a layer"
    return f"{last.name}, and the loss takes its values"


def _out_of_reach(exam: Examination, last: Call) -> Iterator[Finding]:
    """Report outputs that are bounded, if the loss within the bounds is far above the lowest that others have."""
    within = last.range
    evidence: dict[str, float | int | str]
    if within is None or not within.is_bounded or within.source is None or exam.passed.error is not None:
        return
    outputs, targets = exam.passed.logits, exam.targets
    if within.low == within.high:
        evidence = {"activation": within.source.name, "value": within.low}
        yield finding("softmax_over_one", (within.source.place,), evidence)
        return
    floor = lowest_within(exam.loss_at, outputs, within.low, within.high)
    sizes = [float(t.detach().abs().max()) for t in tensors(targets) if t.is_floating_point() and t.numel()]
    near = max([NEAR, *(2 * size for size in sizes)])
    others = lowest_within(exam.loss_at, outputs, -inf, inf, near)
    guessing = exam.guessing if isfinite(exam.guessing) and exam.guessing > 0 else abs(exam.passed.loss)
    # A loss that takes no other outputs has no lower value outside the bounds.
    if not floor - max(others, 0.0) > OUT_OF_REACH * guessing > 0:
        return
    if lowest_within(exam.loss_at, outputs, -inf, inf, FAR * near) < others - 0.01 * guessing:
        # The loss falls without bound outside, as with logarithms of probabilities: it means the bounds.
        return
    evidence = {"activation": within.source.name.rstrip("_"), "low": within.low}
    evidence |= {"high": within.high, "lowest_loss": floor, "loss_without_bounds": max(others, 0.0)}
    where = (within.source.place,)
    if isinstance(targets, Tensor) and targets.is_floating_point() and targets.shape == outputs.shape:
        evidence |= {"smallest_target": float(targets.min()), "largest_target": float(targets.max())}
        yield finding("unreachable_targets", where, evidence)
        return
    is_cosine = within.source.name in (*PRODUCTS, "cosine_similarity", "normalize", "sum")
    yield finding("cosine_logits" if is_cosine else "bounded_logits", where, evidence)


def _squashed(exam: Examination) -> Squashed | None:
    """Find an activation with values that the loss takes for logits, by the calls or by the values of the loss."""
    for call in exam.passed.flow.calls:
        if call.path == LOSS and call.name in TAKES_LOGITS:
            made = [source.origin() for source in call.sources() if source.is_trained]
            if made and made[0].path != LOSS and _is_activation(made[0]):
                return made[0], call.name
    made_logits = exam.passed.flow.of(exam.passed.logits)
    last = None if made_logits is None else made_logits.origin()
    if last is not None and _is_activation(last) and takes_logits(exam):
        return last, "the loss"
    return None


def _is_activation(call: Call) -> bool:
    """Whether a call bounds or rectifies values that a loss may take for logits; a clamp does so on purpose."""
    return KINDS.get(call.name) in ("activation", "softmax") and call.name not in ("log_softmax", "clamp", "hardtanh")


def takes_logits(exam: Examination) -> bool:
    """Whether the loss contains a softmax or a sigmoid, judged by its values.

    For logits of 0, a cross-entropy of K classes is log K and a binary cross-entropy log 2, for any targets, as a
    mean or a sum. A softmax does not change if a constant is added to all logits.
    """
    logits = exam.passed.logits.detach()
    try:
        with torch.no_grad():
            zero, value, shifted = (
                float(exam.loss_at(shown)) for shown in (torch.zeros_like(logits), logits, logits + 3.0)
            )
    except (RuntimeError, ValueError, TypeError):
        return exam.loss is F.cross_entropy
    classes = logits.shape[1] if logits.dim() > 1 else 1
    is_softmax = classes > 1 and _counts(zero / log(classes), logits.numel() // classes)
    return (is_softmax and abs(value - shifted) < 1e-4 * abs(value)) or _counts(zero / log(2), logits.numel())


def _counts(ratio: float, values: int) -> bool:
    """Whether a ratio equals 1 or the number of values, to the precision of float32."""
    return any(abs(ratio / count - 1) < 1e-5 for count in (1, max(values, 1)))


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


@check("outputs by example")
def check_dependence(exam: Examination) -> Steps:
    """Look for outputs that are the same for all examples, and for the first layer that makes them so."""
    logits = exam.passed.logits.detach().double()
    if logits.dim() < 1 or len(logits) < 2:
        raise NotAsked("there is one example")
    size, apart = float(logits.abs().max()), float((logits - logits.mean(0)).abs().max())
    summary = f"they differ by up to {apart:.3g}, and are up to {size:.3g}"
    if not torch.isfinite(logits).all() or apart > SAME * size:
        return summary
    layers = [event for event in exam.passed.events if event.kind in ("weight", "norm", "activation")]
    matrices = [parameter for event in layers[-1:] for parameter in event.parameters if parameter.dim() > 1]
    if layers and layers[-1].spread_in > SAME and not any(bool(matrix.any()) for matrix in matrices):
        return "the classifier starts at zero, and reads examples that differ"
    if _opens(exam):
        return f"{summary}: weights that start at zero keep the inputs from them"
    place = next((event.place for event in layers if min(event.spread, event.spread_in) <= SAME), "forward")
    evidence = {"largest_output": size, "largest_difference": apart}
    yield finding("input_independent_outputs", (place,), evidence, place=place)
    return summary
