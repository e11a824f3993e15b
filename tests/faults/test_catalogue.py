"""The rows of the seen half: the first finding names the cause, and the twin and healthy trainings have none."""

from __future__ import annotations

import pytest

from tests.faults.catalogue import Case, catalogue
from tests.faults.diagnosers import diagnoser_of
from tests.faults.scorer import asked, verdicts

SEEN = catalogue("seen")
# What the first finding is where it does not name the cause, empty if there is none; correct it when it gets better.
MISSED = {
    "everything_but_batch_norms_frozen": "",
    "log_variance_overflows": "symptom",
    "large_bias": "",
}
# Every third row; all of them in `make test-slow`, and both halves in `make bench-doctor`.
SAMPLED = {case.name for case in SEEN[::3]}


@pytest.mark.filterwarnings("ignore")  # some faults warn
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name in SAMPLED else pytest.mark.slow) for case in SEEN],
)
def test_the_first_finding_names_the_cause(case: Case) -> None:
    first = {}
    for variant in case.variants:
        answer = asked(diagnoser_of("normless"), case, variant)
        assert not answer.error
        first[variant] = (*verdicts(case, answer), "")[0]
    expected = MISSED.get(case.name, "cause")
    assert first == {variant: expected if variant == "broken" else "" for variant in case.variants}
