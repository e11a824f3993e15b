"""A check of the gradient through time: whether the loss depends on the first steps of a sequence."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from normless.doctor.experiments.steps import fits
from normless.doctor.facts.examination import Examination
from normless.doctor.findings import Evidence, NotAsked, Steps, check, finding

# Sequences of at least this length are judged, by this share of their steps at either end.
LENGTH, SHARE = 20, 0.25
# The influence of the first steps is that of the last ones times a factor beyond this one.
FACTOR = 1e4
# A trial that lowers the loss by a smaller share is slow.
PROGRESS = 0.5


@check("gradient through time")
def check_time(exam: Examination) -> Steps:
    """Compare the gradients of the loss with respect to the first and the last steps of the inputs.

    A network that fits the batch, or comes close, does not need the steps that fade.
    """
    ratios = {number: ratio for number, size in exam.influence.items() if (ratio := _ratio(exam, size)) is not None}
    if not ratios:
        raise NotAsked(f"there are no sequences of {LENGTH} steps or more")
    is_stuck = exam.knows("not_fitted")
    is_slow = bool(exam.trials) and exam.trials[0].progress < PROGRESS
    is_slow &= not any(fits(exam, trial) for trial in exam.trials)
    for number, ratio in ratios.items():
        if (is_stuck or is_slow) and not 1 / FACTOR < ratio < FACTOR:
            evidence: Evidence = {"ratio": max(ratio, 1 / ratio if ratio else float("inf")), "input": number}
            kind = "exploding_through_time" if ratio > 1 else "vanishing_through_time"
            # Slow steps alone do not tell that the first elements matter: a batch may be learned from the last ones.
            yield replace(finding(kind, 0.6, (), evidence), advice=not is_stuck)
    return f"first steps have {', '.join(f'{ratio:.2g}' for ratio in ratios.values())} times that of the last"


def _ratio(exam: Examination, size: Tensor) -> float | None:
    """Return the influence of the first steps relative to that of the last ones; None if there are no steps."""
    if size.dim() not in (2, 3):
        return None
    examples = len(exam.passed.logits) if exam.passed.logits.dim() else 0
    axis = 1 if len(size) == examples else 0
    if size.shape[axis] < LENGTH:
        return None
    steps = size.sum([other for other in range(size.dim()) if other != axis])
    count = int(SHARE * len(steps))
    first, last = float(steps[:count].max()), float(steps[-count:].max())
    # Inputs that nothing reads are another finding.
    return first / last if last > 0 and first > 0 else None
