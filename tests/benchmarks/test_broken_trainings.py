"""The benchmark of broken trainings: its cases, their sources, and the scoring of answers."""

import dataclasses
import json

import pytest
import torch

from benchmarks.faults import case as cases_of
from benchmarks.faults import check, measure, measures, rivals, score
from benchmarks.faults.case import Case, Loop, Training
from benchmarks.faults.sources import COLLECTIONS
from benchmarks.faults.truth import Truth, both
from tests.benchmarks.answers_to_faults import NAMING

CASES = {case.name: case for case in cases_of.all_cases()}
FAULTS = [case for case in CASES.values() if case.truth]

SYMPTOMS = (
    "The batch cannot be fitted: after 60 steps the loss stays at 2.29, while guessing gives 2.30.",
    "The loss is nan after 3 steps.",
    "The loss diverges: 2.3 -> 1e6 within 10 steps.",
    "The loss is large: 1e6 at the start.",
    "The training loss falls, but the accuracy in evaluation stays low.",
    "The weights do not change.",
    "Some parameters receive no gradient.",
    "Cannot be fitted; not due to the learning rate, data, norms or reach of the gradient: look at the model.",
)


def state(training: Training | Loop) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in training.model.parameters()]


@pytest.mark.parametrize("name", sorted(CASES)[::9])
def test_a_case_is_the_same_at_every_build(name: str) -> None:
    case = CASES[name]
    first, second = state(case.build(broken=True)), state(case.build(broken=True))
    assert all(torch.equal(left, right) for left, right in zip(first, second, strict=True))


@pytest.mark.filterwarnings("ignore:Using a target size")  # which is the fault
@pytest.mark.parametrize("case", FAULTS[::8], ids=lambda case: case.name)
def test_both_trainings_of_a_fault_take_a_step(case: Case) -> None:
    for broken in (True, False):
        training = case.build(broken)
        if isinstance(training, Loop):
            training.batches = training.batches[:2]
            losses = measures.run_loop(training)
        else:
            losses = measures.train(training, 2)
        assert len(losses) == 2
        assert isinstance(training.success(), float)


@pytest.mark.parametrize("name", ["no_activation_between_layers", "rate_too_low", "clipped_to_almost_nothing"])
def test_the_twin_trains_and_the_broken_training_does_not(name: str) -> None:
    (row,) = check.checked([CASES[name]])
    assert row.passed, str(row)


def test_there_are_enough_cases_of_every_kind_in_both_halves() -> None:
    for half in ("seen", "held"):
        chosen = [case for case in CASES.values() if case.half == half]
        assert sum(case.truth is not None and not case.in_loop for case in chosen) >= 25
        assert sum(case.in_loop for case in chosen) >= 5
        assert sum(case.truth is None for case in chosen) >= 10
    assert all(case.steps <= 200 and case.below < case.reaches for case in FAULTS)


def test_every_case_names_a_published_set_and_a_program() -> None:
    assert {case.source.collection for case in CASES.values()} <= set(COLLECTIONS)
    assert all(case.source.item and case.description for case in CASES.values())
    assert all(case.source.address for case in CASES.values() if case.source.consulted)


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.name)
def test_the_truth_accepts_the_description(case: Case) -> None:
    assert case.truth is not None
    assert dataclasses.replace(case.truth, modules=()).verdict(case.description) == "cause"


def test_the_truth_accepts_what_names_the_cause() -> None:
    assert set(NAMING) == {case.name for case in FAULTS}
    missed = [
        (case.name, text)
        for case in FAULTS
        for text in NAMING[case.name]
        if case.truth and case.truth.verdict(text) != "cause"
    ]
    assert missed == []


@pytest.mark.parametrize("text", SYMPTOMS)
def test_a_symptom_names_no_cause(text: str) -> None:
    named = [case.name for case in FAULTS if case.truth and case.truth.verdict(text) == "cause"]
    assert named == []


def test_what_an_answer_rules_out_is_not_named() -> None:
    truth = Truth(both("rate", "high"), symptom="diverg")
    assert truth.verdict("The learning rate is too high") == "cause"
    assert truth.verdict("It diverges, which is not due to a high learning rate") == "symptom"
    assert truth.verdict("The data are odd") == "wrong"


def test_a_cause_in_one_place_needs_the_module() -> None:
    truth = Truth("dead", modules=("hidden",))
    assert truth.verdict("dead units in hidden") == "cause"
    assert truth.verdict("dead units in hidden2") == "wrong"
    assert truth.verdict("dead units in net.hidden") == "wrong"


def answered(*texts: str, variant: score.Variant = "broken", error: str = "") -> score.Answer:
    return score.Answer("rate_too_low", variant, texts, error)


def test_answers_are_scored() -> None:
    cause, symptom, wrong = "The learning rate is too low", "The loss stays", "The weather is bad"
    answers = [
        answered(cause, wrong),
        answered(symptom, cause),
        answered(wrong),
        answered(),
        answered(error="ValueError"),
        answered(variant="twin"),
        answered(cause, variant="twin"),
    ]
    row = score.score(CASES, answers)
    assert (row.broken, row.detected, row.right_first, row.named) == (5, 3, 1, 2)
    assert (row.symptom_first, row.wrong_first, row.silent) == (1, 1, 1)
    assert (row.clean, row.false_alarms, row.errors) == (2, 1, 1)
    assert "held" in score.table(CASES, answers)
    assert json.loads(measure.line("mine", CASES["rate_too_low"], answers[0]))["verdicts"] == ["cause", "wrong"]


def test_an_exception_of_a_diagnoser_is_kept() -> None:
    def fails(*_: object) -> list[str]:
        raise ValueError("the batch is odd")

    answer = measure.asked(rivals.Rival("fails", fails, None, "torch"), CASES["rate_too_low"], "broken")
    assert "the batch is odd" in answer.error
    assert "ValueError" in answer.error


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no_such_case"):
        cases_of.all_cases(names=["no_such_case"])
    with pytest.raises(ValueError, match="module:function"):
        rivals.rival("nobody")
