"""Check the arguments of torch's losses: log-probabilities, probabilities, signs, classes, weights and axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import inf, log

import torch
from torch import Tensor

from normless.doctor._findings import Finding, FindingEvidence, Steps, check, finding
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._tape import LossCall

# Sums of probabilities may differ from 1 by this much.
CLOSE = 1e-2
# Losses of torch, and the interval or the size of their targets.
_PROBABILITIES, _COUNTS = ((0.0, 1.0), "probabilities between 0 and 1"), ((0.0, inf), "counts from 0 on")
_SIGNS = ((-1.0, 1.0), "the signs -1 and 1")
_TAKES = {
    "binary_cross_entropy": _PROBABILITIES, "binary_cross_entropy_with_logits": _PROBABILITIES,
    "multilabel_soft_margin_loss": _PROBABILITIES, "poisson_nll_loss": _COUNTS, "soft_margin_loss": _SIGNS,
    "hinge_embedding_loss": _SIGNS, "cosine_embedding_loss": _SIGNS, "margin_ranking_loss": _SIGNS,
}  # fmt: skip
_OF_LOGITS = {"binary_cross_entropy_with_logits", "cross_entropy", "multilabel_soft_margin_loss"}
_ACTIVATIONS = {"sigmoid", "softmax", "softmin"}
# The means over a mask are judged if it keeps at most this share.
SPARSE = 0.05
# A class is rare or frequent, and a weight small or large, by this factor.
UNEVEN = 3.0
# Fewer targets of a class do not say how rare it is.
FEW_TARGETS = 16


@check("meaning of the targets", needs="pass")
def check_meaning(exam: Examination) -> Steps:
    """Compare the arguments of torch's losses with what they take."""
    for made in exam.passed.losses:
        judges = [_of_logits, _JUDGES.get(made.call.plain, _of_interval)]
        if found := next((found for judge in judges for found in judge(exam, made)), None):
            yield found
            return "the values do not have the meaning that the loss gives them"
    return "the losses of torch that were called take them"


def _of_logits(exam: Examination, made: LossCall) -> Iterator[Finding]:
    """Look for a sigmoid or softmax, in the loss, of what a loss takes as logits."""
    for source in [*made.call.sources()][:1] if made.call.name in _OF_LOGITS else ():
        activation = source.origin()
        if activation.in_loss and activation.plain in _ACTIVATIONS:
            evidence: FindingEvidence = {"function": made.call.name, "line": activation.words["line"]}
            yield finding("activated_twice", (), evidence, activation=activation.name)


def _of_interval(exam: Examination, made: LossCall) -> Iterator[Finding]:
    """Look for targets that a loss does not take, and outputs that add up to one while the targets do not."""
    name, target = made.call.name, made.values.get("target")
    if name not in _TAKES or target is None or not target.numel():
        return
    (low, high), takes = _TAKES[name]
    evidence: FindingEvidence = {"smallest": float(target.min()), "largest": float(target.max()), "function": name}
    is_outside = bool(((target < low) | (target > high)).any())
    if is_outside or (low == -high and not bool((target.abs() == high).all())):
        yield finding("targets_out_of_range", (), evidence, takes=takes)
    given = made.values.get("input", target)
    if name == "binary_cross_entropy" and _is_distribution(given, -1) and target.shape == given.shape:
        sums = target.double().sum(-1)
        if bool(((sums - 1).abs() > CLOSE).any()):
            ends = {"smallest_sum": float(sums.min()), "largest_sum": float(sums.max())}
            yield finding("competing_outputs", (), {**ends, "function": name})


def _of_kl_div(exam: Examination, made: LossCall) -> Iterator[Finding]:
    """Look for probabilities in place of log-probabilities, on both sides of a divergence, and exchanged sides."""
    given, target, is_log = made.values["input"], made.values["target"], made.values["log_target"]
    if target.requires_grad and not given.requires_grad:
        yield finding("exchanged_arguments", (), {"function": "kl_div"})
    axis = -1 if given.dim() == 1 else next((dim for dim in (1, -1) if _is_distribution(given, dim)), 1)
    yield from _not_logarithms(given, axis, "kl_div")
    names = ("probabilities", "log-probabilities")
    if target.shape == given.shape and _is_distribution(target if is_log else target.exp(), axis):
        # The logarithms of log-probabilities are NaN.
        evidence = {"got": names[not is_log], "takes": names[is_log]}
        yield finding("targets_of_divergence", (), evidence, grade=not is_log)


def _of_nll(exam: Examination, made: LossCall) -> Iterator[Finding]:
    """Look for inputs that are not log-probabilities, and for classes without weight."""
    given = made.values["input"]
    axis = min(1, given.dim() - 1)
    yield from _not_logarithms(given, axis, "nll_loss")
    others = [dim for dim in range(given.dim()) if dim != axis and given.shape[dim] > 1]
    wrong = next((dim for dim in others if _is_distribution(given.exp(), dim)), None)
    if wrong is not None and not _is_distribution(given.exp(), axis):
        yield finding("normalized_over_wrong_axis", (), {"axis": wrong, "classes_axis": axis})
    yield from _of_classes(exam, made)


def _not_logarithms(given: Tensor, axis: int, function: str) -> Iterator[Finding]:
    """Report values that are not log-probabilities, if some are clearly above 0 or all are probabilities."""
    largest = float(given.detach().max()) if given.numel() else 0.0
    if largest > CLOSE and not _is_distribution(given.exp(), axis):
        is_normalized = any(_is_distribution(given, dim) for dim in range(given.dim()))
        got = "probabilities" if is_normalized else "logits, which are not normalized"
        yield finding("not_logarithms", (), {"largest": largest, "function": function}, got=got)


def _is_distribution(values: Tensor, axis: int) -> bool:
    """Whether values are from 0 on and add up to one along an axis."""
    values = values.detach()
    if not values.is_floating_point() or not values.numel() or values.shape[axis] < 2:
        return False
    # The numbers of subnormal size are rounded to 0.
    return bool((values >= 0).all()) and bool(((values.double().sum(axis) - 1).abs() < CLOSE).all())


def _of_cross_entropy(exam: Examination, made: LossCall) -> Iterator[Finding]:
    """Look for a single class, targets that are not distributions, a wrong axis, and classes without weight."""
    given, target = made.values["input"], made.values["target"]
    outputs, source = {"outputs": str(tuple(given.shape))}, made.call.reads[0][0]
    if given.shape[1:2] == (1,) and given.dim() > 1:
        yield finding("one_class", (), outputs)
    if target.is_floating_point() and target.shape == given.shape and target.numel():
        sums = target.detach().double().sum(min(1, given.dim() - 1))
        is_negative = bool((target < 0).any())
        if is_negative or bool((((sums - 1).abs() > CLOSE) & (sums != 0)).any()):
            evidence = {"smallest": float(target.min()), "smallest_sum": float(sums.min())}
            yield finding("not_distributions", (), {**evidence, "largest_sum": float(sums.max())}, grade=is_negative)
        return
    if source.name == "linear" and given.dim() > 2 and given.shape[1] == given.shape[-1]:
        yield finding("classes_on_last_axis", (source.place,), outputs)
    yield from _of_classes(exam, made)


def _of_classes(exam: Examination, made: LossCall) -> Iterator[Finding]:
    """Look for classes of the data that the loss leaves out or weights in reverse."""
    given, target, weight, ignored = (made.values[name] for name in ("input", "target", "weight", "ignore_index"))
    classes = given.shape[min(1, given.dim() - 1)]
    if target.is_floating_point() or not target.numel():
        return
    weight = weight.detach().double().cpu() if weight is not None and len(weight) == classes else None
    left_out = {ignored} if 0 <= ignored < classes else set()
    left_out |= set() if weight is None else {*(weight == 0).nonzero().flatten().tolist()}
    for label in sorted(left_out):
        share = float((target == label).double().mean())
        if 0 < share < 1 and not _is_padding(exam, classes, label):
            how = f"ignore_index={label}" if label == ignored else "its weight of 0"
            evidence: FindingEvidence = {"class": label, "share": share, "classes": classes}
            # In images the class of the background may be left out on purpose.
            yield finding("ignored_class", (), evidence, how=how, advice=any(t.dim() > 2 for t in exam.labels))
            return
    counts = torch.bincount(target.flatten()[target.flatten() >= 0], minlength=classes)[:classes].double().cpu()
    if weight is not None and bool((counts > 0).all()) and bool((weight > 0).all()):
        yield from _reversed(counts, weight)


def _reversed(counts: Tensor, weight: Tensor) -> Iterator[Finding]:
    """Report weights that grow with the frequencies of the classes."""
    if counts.max() < UNEVEN * counts.min() or weight.max() < UNEVEN * weight.min():
        return
    if all(later >= before for before, later in pairwise(weight[counts.argsort()].tolist())):
        frequent, rare = int(counts.argmax()), int(counts.argmin())
        evidence = {"frequent": frequent, "weight_of_frequent": float(weight[frequent]), "rare": rare}
        yield finding("reversed_weights", (), evidence | {"weight_of_rare": float(weight[rare])})


def _is_padding(exam: Examination, classes: int, label: int) -> bool:
    """Whether a label marks padding: a token of the vocabulary, or labels that end each sequence."""
    given = [tensor for tensor in exam.labels if not tensor.is_floating_point() and tensor.dim()]
    if not given or given[0].dim() < 2:
        return False
    # The classes are the tokens that the network reads.
    if any(event.call.name == "embedding" and len(event.parameters[0]) == classes for event in exam.events("weight")):
        return True
    for labels in given:
        steps = (labels == label).flatten(0, -2).long().diff(dim=-1)
        same = [t for t in exam.given if t.shape == labels.shape and not t.is_floating_point()]
        is_at_an_end = bool((steps >= 0).all()) or bool((steps <= 0).all())
        if is_at_an_end or any(torch.unique(t[labels == label]).numel() == 1 for t in same):
            return True
    return False


def _of_binary(exam: Examination, made: LossCall) -> Iterator[Finding]:
    """Look for targets that are not probabilities, and for positives that are weighted by their frequency."""
    yield from _of_interval(exam, made)
    target, weight = made.values["target"].detach().cpu().double(), made.values["pos_weight"]
    if weight is None or not target.numel():
        return
    weight = weight.detach().cpu().double()
    weight = weight if weight.dim() else weight[None]
    sizes = zip(weight.shape[::-1], target.shape[::-1], strict=False)
    if weight.dim() > target.dim() or any(own not in (1, size) for own, size in sizes):
        return
    # The targets that each weight is for.
    positives = target.sum_to_size(weight.shape).flatten()
    total = target.numel() // weight.numel()
    yield from _reversed_positives(positives, total - positives, weight.flatten())


def _reversed_positives(positives: Tensor, negatives: Tensor, weight: Tensor) -> Iterator[Finding]:
    """Report weights of positives that are small where positives are rare, or large where they are frequent."""
    odds = negatives / positives
    is_uneven = (positives > 0) & (negatives > 0) & (positives + negatives >= FEW_TARGETS) & (weight > 0)
    is_uneven &= (odds.log().abs() >= log(UNEVEN)) & (weight.log().abs() >= log(UNEVEN))
    is_reversed = is_uneven & (odds.log() * weight.log() < 0)
    if bool(is_reversed.any()) and bool((is_reversed == is_uneven).all()):
        worst = int(torch.where(is_reversed, odds.log().abs(), 0).argmax())
        values = {"share": 1 / (1 + odds[worst]), "pos_weight": weight[worst], "balanced": odds[worst]}
        evidence = {"class": worst} | {name: float(value) for name, value in values.items()}
        yield finding("reversed_pos_weight", (), evidence)


def _of_margins(exam: Examination, made: LossCall) -> Iterator[Finding]:
    """Look for a matrix of zeros and ones in place of class indices that are padded with -1."""
    target = made.values["target"]
    if target.dim() == 2 and target.shape[1] > 2 and bool(((target == 0) | (target == 1)).all()):
        yield finding("multi_hot_targets", (), {"classes": target.shape[1]})


def _of_mask(exam: Examination, made: LossCall) -> Iterator[Finding]:
    """Look for a mean over all positions of a product with a mask that keeps few of them."""
    mask = made.values["mask"]
    share = float(mask.double().mean())
    is_one_hot = mask.dim() > 1 and mask.shape[-1] > 1 and bool((mask.sum(-1) == 1).all())
    means = (call for call in exam.in_loss if call.name == "mean" and next(call.sources(), None) is made.call)
    call = next(means, None)
    if share <= SPARSE and not is_one_hot and call is not None:
        evidence: FindingEvidence = {"share": share, "positions": mask.numel(), "line": call.words["line"]}
        yield finding("masked_mean", (), evidence)


_JUDGES: dict[str, Callable[[Examination, LossCall], Iterator[Finding]]] = {
    "kl_div": _of_kl_div,
    "nll_loss": _of_nll,
    "binary_cross_entropy_with_logits": _of_binary,
    "ctc_loss": lambda exam, made: _not_logarithms(made.values["log_probs"], -1, "ctc_loss"),
    "cross_entropy": _of_cross_entropy,
    "multilabel_margin_loss": _of_margins,
    "mul": _of_mask,
}
