"""The catalogue and its scorer: rows, their bars, the scoring of answers, and cures that are applied."""

from __future__ import annotations

import dataclasses

import pytest

from tests.faults import cures, diagnosers, scorer
from tests.faults.__main__ import checked
from tests.faults.catalogue import Training, catalogue
from tests.faults.sources import COLLECTIONS
from tests.faults.truth import Truth, both

CASES = {case.name: case for case in catalogue()}
PUBLISHED = [case for case in CASES.values() if case.set == "published"]
FAULTS = [case for case in PUBLISHED if case.truth]
SYMPTOMS = (
    "The batch cannot be fitted: after 60 steps the loss stays at 2.29, while guessing gives 2.30.",
    "The loss is nan after 3 steps.",
    "The training loss falls, but the accuracy in evaluation stays low.",
    "Some parameters receive no gradient.",
    "Cannot be fitted; not due to the learning rate, data, norms or reach of the gradient: look at the model.",
)


@pytest.mark.parametrize("name", ["rate_too_low", "clipped_to_almost_nothing", "values_of_all_actions"])
def test_the_twin_trains_and_the_broken_training_does_not(name: str) -> None:
    holds, line = checked(CASES[name])
    assert holds, line
    assert not checked(dataclasses.replace(CASES[name], below=-2.0))[0]
    assert not checked(dataclasses.replace(CASES[name], reaches=1.1))[0]


def test_the_published_rows_and_their_halves() -> None:
    assert [sum(case.half == half for case in FAULTS) for half in ("seen", "held")] == [38, 52]
    assert [sum(case.half == half for case in PUBLISHED) for half in ("seen", "held")] == [52, 70]
    assert {case.source.collection for case in CASES.values()} <= set(COLLECTIONS)
    assert all(case.steps <= 200 and case.below < case.reaches for case in FAULTS)


def test_the_truth_accepts_the_description_and_no_symptom() -> None:
    for case in FAULTS:
        assert case.truth is not None
        assert dataclasses.replace(case.truth, modules=()).verdict(case.description) == "cause", case.name
        assert "cause" not in [case.truth.verdict(text) for text in SYMPTOMS], case.name


HIGH, DEAD = Truth(both("rate", "high"), symptom="diverg"), Truth("dead", modules=("hidden",))
DETACHED = Truth.of_kinds(("frozen", "detached"))


@pytest.mark.parametrize(
    ("truth", "text", "verdict"),
    [
        (HIGH, "The learning rate is too high", "cause"),
        (HIGH, "It diverges, which is not due to a high learning rate", "symptom"),
        (DEAD, "dead units in hidden", "cause"),
        (DEAD, "dead units in net.hidden2", "wrong"),
        (DETACHED, "kind='detached'", "cause"),
        (DETACHED, "kind='detached_state'", "wrong"),
    ],
)
def test_a_cause_is_named_where_it_is_and_not_ruled_out(truth: Truth, text: str, verdict: str) -> None:
    assert truth.verdict(text) == verdict


def test_answers_are_scored() -> None:
    cause, symptom, wrong = "The learning rate is too low", "The loss stays", "The weather is bad"
    texts = ((cause, wrong), (symptom, cause), (wrong,), ())
    given = [scorer.Answer("rate_too_low", "broken", text) for text in texts]
    given += [scorer.Answer("rate_too_low", "broken", error="ValueError")]
    given += [scorer.Answer("rate_too_low", "twin", text) for text in ((), (cause,))]
    row = scorer.score(CASES, given)
    assert [row[name] for name in scorer.COUNTED] == [5, 3, 1, 2, 1, 1, 1, 2, 1, 1]


def test_diagnosers_are_asked_what_they_can_answer_and_exceptions_are_kept() -> None:
    def fails(_: Training) -> list[str]:
        raise ValueError("the batch is odd")

    other = diagnosers.Diagnoser("fails", fails, None, "torch")
    assert "ValueError: the batch is odd" in scorer.asked(other, CASES["rate_too_low"], "broken").error
    asked = [case for case in CASES.values() if scorer.applies(other, case)]
    assert {(case.set, case.in_loop) for case in asked} == {("published", False)}


def test_the_cure_of_a_maximized_loss_trains() -> None:
    result = cures.result_of(CASES["loss_maximized"])
    assert result is not None
    assert (result.kind, result.words, result.trains) == ("ascent", "maximize=False", True)
