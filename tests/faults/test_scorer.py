"""The catalogue and its scorer: rows, their sources, the scoring of answers, and cures that are applied."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn
from torch.optim import SGD

from normless.diagnosis import Check, Cure, Diagnosis, Finding
from tests.faults import cures, diagnosers, scorer
from tests.faults.__main__ import checked
from tests.faults.catalogue import Case, Loop, Training, catalogue
from tests.faults.sources import COLLECTIONS
from tests.faults.training import call, run_loop, train
from tests.faults.truth import Truth, both

CASES = {case.name: case for case in catalogue()}
PUBLISHED = [case for case in CASES.values() if case.set == "published"]
FAULTS = [case for case in PUBLISHED if case.truth]

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


@pytest.mark.filterwarnings("ignore:Using a target size")  # which is the fault
@pytest.mark.parametrize("case", FAULTS[::9], ids=lambda case: case.name)
def test_both_trainings_are_the_same_at_every_build_and_take_a_step(case: Case) -> None:
    for broken in (True, False):
        training, other = case.build(broken), case.build(broken)
        for one, same in zip(training.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(one, same)
        if isinstance(training, Loop):
            training.batches = training.batches[:2]
            losses = run_loop(training)
        else:
            losses = train(training, 2)
        assert len(losses) == 2
        assert isinstance(training.success(), float)


@pytest.mark.parametrize("name", ["rate_too_low", "clipped_to_almost_nothing", "values_of_all_actions"])
def test_the_twin_trains_and_the_broken_training_does_not(name: str) -> None:
    holds, line = checked(CASES[name])
    assert holds, line
    below = CASES[name].below
    assert not checked(dataclasses.replace(CASES[name], below=-2.0))[0]
    assert not checked(dataclasses.replace(CASES[name], reaches=1.1))[0]
    assert 0 < below < 1


def test_the_published_rows_and_their_halves() -> None:
    counts = {half: sum(case.half == half for case in FAULTS) for half in ("seen", "held")}
    assert counts == {"seen": 38, "held": 52}
    assert {half: sum(case.half == half for case in PUBLISHED) for half in counts} == {"seen": 52, "held": 70}
    assert {case.source.collection for case in CASES.values()} <= set(COLLECTIONS)
    assert all(case.source.item and case.description for case in PUBLISHED)
    assert all(case.source.address for case in CASES.values() if case.source.consulted)
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
        (HIGH, "The data are odd", "wrong"),
        (DEAD, "dead units in hidden", "cause"),
        (DEAD, "dead units in hidden2", "wrong"),
        (DEAD, "dead units in net.hidden", "wrong"),
        (DETACHED, "kind='detached'", "cause"),
        (DETACHED, "kind='detached_state'", "wrong"),
        (DETACHED, "the batch is not fitted: parts are frozen", "wrong"),
    ],
)
def test_a_cause_is_named_where_it_is_and_not_ruled_out(truth: Truth, text: str, verdict: str) -> None:
    assert truth.verdict(text) == verdict


def finding(kind: str, cure: Cure | None = None) -> Finding:
    return Finding(kind, 0.9, "", {}, (), "", cure or Cure("look at it"))


def test_answers_are_scored() -> None:
    cause, symptom, wrong = "The learning rate is too low", "The loss stays", "The weather is bad"
    texts = ((cause, wrong), (symptom, cause), (wrong,), ())
    given = [scorer.Answer("rate_too_low", "broken", text) for text in texts]
    given += [scorer.Answer("rate_too_low", "broken", error="ValueError")]
    given += [scorer.Answer("rate_too_low", "twin", text) for text in ((), (cause,))]
    row = scorer.score(CASES, given)
    assert [row[name] for name in scorer.COUNTED] == [5, 3, 1, 2, 1, 1, 1, 2, 1, 1]
    lines = scorer.table(CASES, given).splitlines()
    (cells,) = (line.split()[2:7] for line in lines if line.startswith("published, held"))
    assert cells == ["5", "3", "60", "%", "1"]
    assert json.loads(scorer.line("mine", CASES["rate_too_low"], given[0]))["verdicts"] == ["cause", "wrong"]


def test_diagnosers_are_asked_what_they_can_answer_and_exceptions_are_kept() -> None:
    def fails(_: Training) -> list[str]:
        raise ValueError("the batch is odd")

    other = diagnosers.Diagnoser("fails", fails, None, "torch")
    assert "ValueError: the batch is odd" in scorer.asked(other, CASES["rate_too_low"], "broken").error
    asked = [case for case in CASES.values() if scorer.applies(other, case)]
    assert {case.set for case in asked} == {"published"}
    assert not any(case.in_loop for case in asked)
    assert all(scorer.applies(diagnosers.DIAGNOSERS["normless"], case) for case in CASES.values())


def test_a_cure_in_words_alone_cannot_be_applied() -> None:
    def made(cure: Cure) -> Diagnosis:
        return Diagnosis((Check("a check", "", (finding("another"), finding("a_kind", cure))),), ())

    assert cures.first_applicable(made(Cure("use another loss"))) is None
    cure = Cure("use a rate of 1", settings={"lr": 1.0})
    assert cures.first_applicable(made(cure)) == ("a_kind", cure)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.first(self.norm(x)).relu())


def test_a_conversion_is_applied_in_place() -> None:
    model = nn.Sequential(Block(), Block(), nn.Linear(8, 3))
    x = torch.randn(16, 8)
    before = model(x)
    training = Training(model, (x, torch.arange(16) % 3), nn.CrossEntropyLoss(), SGD(model.parameters(), 0.1), float)
    words = cures.applied(training, Cure("", ("rezero",), {"rezero": 0.1}, {"lr": 0.5}))
    assert words == "rezero, lr=0.5"
    assert training.model is model
    assert not torch.allclose(call(model, x), before)
    assert max(group["lr"] for group in training.optimizer.param_groups) == pytest.approx(0.5)
    held = {id(known) for group in training.optimizer.param_groups for known in group["params"]}
    assert held == {id(known) for known in model.parameters()}


def test_the_cure_of_a_maximized_loss_trains() -> None:
    result = cures.result_of(CASES["loss_maximized"])
    assert result is not None
    assert (result.kind, result.words, result.trains) == ("ascent", "maximize=False", True)
    assert not dataclasses.replace(result, success=result.case.below - 0.01).trains
