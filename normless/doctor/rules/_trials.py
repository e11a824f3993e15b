"""Trial steps on copies, as rules need them: whether they are slow, and how far they lower a changed loss."""

from __future__ import annotations

from normless.doctor.experiments._engine import MANY, UNCHANGED, Experiment, Trial, is_fitted, tried
from normless.doctor.facts._examination import Examination

# A trial that lowers the loss by a smaller share is far from fitting the batch.
HALF = 0.5


def is_slow(exam: Examination) -> bool:
    """Whether no trial fits the batch, and the first is far from it."""
    return bool(exam.trials) and exam.trials[0].progress < HALF and not is_fitted(exam)


def trial_with(exam: Examination, experiment: Experiment = UNCHANGED) -> Trial:
    """Take as many trial steps as a cure gets, with a copy of the optimizer."""
    assert exam.optimizer is not None
    return tried(exam, exam.optimizer, MANY, experiment)[1]
