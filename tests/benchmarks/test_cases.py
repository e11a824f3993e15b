"""The benchmark's cases that were seen while the checks were written: the true cause comes first."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis.cases import CASES
from benchmarks.diagnosis.measure import DiagnosisBench, measure_diagnosis
from normless.diagnosis import diagnose

# Their causes show in steps only.
OF_TRIALS = {
    "rate_of_twenty",
    "rate_of_a_millionth",
    "momentum_near_one",
    "decay_of_five",
    "bfloat16_weights",
    "loss_of_a_ten_millionth",
}
# They take seconds each; `python -m benchmarks.diagnosis` has them.
SLOW = {
    "no_norms",
    "deep_post_norm",
    "skip_forgotten",
    "adam_at_one",
    "clipped_to_nothing",
    "large_bias",
    "two_zeros",
}
SEEN = [name for name, case in CASES.items() if not case.aside and name not in SLOW]
# One case of each cause and one healthy network; the others are slow.
FIRST = {CASES[name].causes: name for name in reversed(SEEN)}.values()


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST else pytest.mark.slow) for name in SEEN]
)
def test_the_true_cause_comes_first(name: str) -> None:
    case = CASES[name]
    patient = case.make()
    steps = 20 if name in OF_TRIALS else 0
    found = diagnose(
        patient.model, patient.batch, loss=patient.loss, optimizer=patient.optimizer, trial_steps=steps
    ).findings
    kinds = [one.kind for one in found]
    assert not kinds if case.healthy else kinds[0] in case.causes


def test_the_benchmark_counts() -> None:
    table = measure_diagnosis(DiagnosisBench(names=("nan_pixel", "healthy_mlp", "plain_list"), trial_steps=1))
    row = table.set_index("cases").loc["seen"]
    assert (row["broken"], row["right"], row["missed"], row["healthy"], row["false_alarms"]) == (2, 2, 0, 1, 0)
