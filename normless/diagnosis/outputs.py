"""The outputs: activations before a loss that takes logits, and outputs that do not depend on the input."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor
from torch.nn import functional as F

from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import Check, Evidence, finding

OUTPUTS, DEPENDENCE = "the last activation", "outputs by example"
# Outputs that differ less than this share of their size between examples are the same.
SAME = 1e-6
_RANGES = {
    "relu": (0.0, None),
    "sigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "relu6": (0.0, 6.0),
    "hardtanh": (-1.0, 1.0),
}


def check_last_activation(e: Examination) -> Check:
    """Look for a softmax or an activation between the classifier and a loss that takes logits."""
    logits = e.passed.logits
    last = next((event for event in e.passed.events if event.output is logits), None)
    if last is None or last.kind not in ("activation", "softmax") or last.name == "log_softmax":
        return Check(OUTPUTS, "none: the outputs are those of a layer" if last is not None else "none was seen")
    wants_logits = takes_logits(e)
    summary = f"{last.name}, and the loss takes {'logits' if wants_logits else 'its values'}"
    if wants_logits:
        kind = "softmax_before_loss" if last.kind == "softmax" else "activation_after_classifier"
        return Check(OUTPUTS, summary, (finding(kind, 0.93, (last.place,), {"activation": str(last.name)}),))
    low, high = _RANGES.get(last.name.rstrip("_"), (None, None))
    if not isinstance(e.targets, Tensor) or not e.targets.is_floating_point():
        return Check(OUTPUTS, summary)
    smallest, largest = float(e.targets.min()), float(e.targets.max())
    if (low is not None and smallest < low) or (high is not None and largest > high):
        evidence: Evidence = {"activation": last.name, "smallest_target": smallest, "largest_target": largest}
        return Check(OUTPUTS, summary, (finding("unreachable_targets", 0.93, (last.place,), evidence),))
    return Check(OUTPUTS, summary)


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


def check_dependence(e: Examination) -> Check:
    """Look for outputs that are the same for all examples, and the first layer after which they are."""
    logits = e.passed.logits.detach().double()
    if logits.dim() < 2 or len(logits) < 2:
        return Check(DEPENDENCE, "there is one example", asked=False)
    size, apart = float(logits.abs().max()), float((logits - logits.mean(0)).abs().max())
    summary = f"they differ by up to {apart:.3g}, and are up to {size:.3g}"
    if not torch.isfinite(logits).all() or apart > SAME * size:
        return Check(DEPENDENCE, summary)
    layers = [event for event in e.passed.events if event.kind in ("weight", "norm", "activation")]
    last = layers[-1] if layers else None
    if (
        last is not None
        and last.spread_in > SAME
        and not any(bool(one.any()) for one in last.parameters if one.dim() > 1)
    ):
        return Check(DEPENDENCE, "the classifier starts at zero, and reads examples that differ")
    place = next((event.place for event in layers if min(event.spread, event.spread_in) <= SAME), "forward")
    evidence = {"largest_output": size, "largest_difference": apart}
    return Check(DEPENDENCE, summary, (finding("input_independent_outputs", 0.9, (place,), evidence, place=place),))
