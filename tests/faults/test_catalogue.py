"""The rows of the seen half: the first finding names the cause, and the twin and healthy trainings have none."""

from __future__ import annotations

import pytest

from tests.faults.catalogue import Case, catalogue
from tests.faults.diagnosers import DIAGNOSERS
from tests.faults.scorer import asked, verdicts

SEEN = catalogue("seen")
# What the first finding is where it does not name the cause, empty if there is none; correct it when it gets better.
MISSED = {
    "everything_but_batch_norms_frozen": "",
    "log_variance_overflows": "symptom",
}
# Rows of the kinds of findings that show in trial steps only; the others are asked without.
TRIED = {
    *("rate_of_twenty", "rate_of_a_millionth", "momentum_near_one", "decay_of_five", "bfloat16_weights"),
    *("adam_at_one", "clipped_to_nothing", "loss_of_a_ten_millionth", "deep_post_norm"),
}
# Rows of many layers.
LONG = {
    *("no_norms", "no_norms_for_images", "skip_forgotten", "two_zeros", "healthy_fixup"),
    *("healthy_skipinit", "graph_network_of_forty_layers", "skip_connections_forgotten", *TRIED),
}


def is_sampled(case: Case, number: int) -> bool:
    """Return whether `make test` asks; `make test-slow` asks the others, and `make bench-doctor` both halves."""
    return case.name not in LONG and number % (2 if case.set == "checks" else 3) == 0


@pytest.mark.filterwarnings("ignore")  # some faults warn
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if is_sampled(case, number) else pytest.mark.slow)
        for number, case in enumerate(SEEN)
    ],
)
def test_the_first_finding_names_the_cause(case: Case) -> None:
    options = {"trial_steps": 0} if case.set == "kinds" and case.name not in TRIED else {}
    first = {}
    for variant in case.variants:
        answer = asked(DIAGNOSERS["normless"], case, variant, **options)
        assert not answer.error
        first[variant] = (*verdicts(case, answer), "")[0]
    expected = MISSED.get(case.name, "cause")
    assert first == {variant: expected if variant == "broken" else "" for variant in case.variants}
