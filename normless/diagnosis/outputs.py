"""The outputs: activations before a loss that takes logits, and outputs that do not depend on the input."""

from __future__ import annotations

from math import inf, log

import torch
from torch import Tensor
from torch.nn import functional as F

from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import Evidence, NotAsked, Steps, check, finding

# Outputs that differ less than this share of their size between examples are the same.
SAME = 1e-6
_RANGES = {
    "sigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "relu": (0.0, inf),
    "relu6": (0.0, 6.0),
    "hardtanh": (-1.0, 1.0),
}


@check("the last activation")
def check_last_activation(e: Examination) -> Steps:
    """Look for a softmax or an activation between the classifier and a loss that takes logits."""
    last = next((event for event in e.passed.events if event.output is e.passed.logits), None)
    if last is None or last.kind not in ("activation", "softmax") or last.name == "log_softmax":
        return "none was seen" if last is None else "none: the outputs are those of a layer"
    evidence: Evidence = {"activation": last.name}
    if takes_logits(e):
        kind = "softmax_before_loss" if last.kind == "softmax" else "activation_after_classifier"
        yield finding(kind, 0.93, (last.place,), evidence)
        return f"{last.name}, and the loss takes logits"
    low, high = _RANGES.get(last.name.rstrip("_"), (-inf, inf))
    if isinstance(e.targets, Tensor) and e.targets.is_floating_point():
        smallest, largest = float(e.targets.min()), float(e.targets.max())
        if smallest < low or largest > high:
            evidence = {**evidence, "smallest_target": smallest, "largest_target": largest}
            yield finding("unreachable_targets", 0.93, (last.place,), evidence)
    return f"{last.name}, and the loss takes its values"


def takes_logits(e: Examination) -> bool:
    """Whether the loss has a softmax or sigmoid of its own.

    A softmax does not change if a constant is added to all logits; the binary cross-entropy of logits 0 is log 2,
    whatever the targets.
    """
    with torch.no_grad():
        logits = e.passed.logits.detach().double().cpu()
        targets = e.targets.cpu() if isinstance(e.targets, Tensor) else e.targets
        try:
            values = [float(e.loss(one, targets)) for one in (logits, logits + 3.0, torch.zeros_like(logits))]
        except (RuntimeError, ValueError, TypeError):
            return e.loss is F.cross_entropy
    is_shift_invariant = (
        logits.dim() > 1 and logits.shape[1] > 1 and abs(values[0] - values[1]) < 1e-6 * abs(values[0])
    )
    return is_shift_invariant or abs(values[2] - log(2)) < 1e-9


@check("outputs by example")
def check_dependence(e: Examination) -> Steps:
    """Look for outputs that are the same for all examples, and the first layer after which they are."""
    logits = e.passed.logits.detach().double()
    if logits.dim() < 2 or len(logits) < 2:
        raise NotAsked("there is one example")
    size, apart = float(logits.abs().max()), float((logits - logits.mean(0)).abs().max())
    summary = f"they differ by up to {apart:.3g}, and are up to {size:.3g}"
    if not torch.isfinite(logits).all() or apart > SAME * size:
        return summary
    layers = [event for event in e.passed.events if event.kind in ("weight", "norm", "activation")]
    matrices = [one for event in layers[-1:] for one in event.parameters if one.dim() > 1]
    if layers and layers[-1].spread_in > SAME and not any(bool(one.any()) for one in matrices):
        return "the classifier starts at zero, and reads examples that differ"
    place = next((event.place for event in layers if min(event.spread, event.spread_in) <= SAME), "forward")
    evidence = {"largest_output": size, "largest_difference": apart}
    yield finding("input_independent_outputs", 0.9, (place,), evidence, place=place)
    return summary
