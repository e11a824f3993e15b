"""Cures of the benchmark of faults are applied in place, so that what measures success reads the cured network."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from benchmarks.cures_of_faults import Result, applied, first_applicable, result_of
from benchmarks.faults.case import Training, all_cases
from benchmarks.faults.measures import call
from normless.diagnosis import Check, Cure, Diagnosis, Finding


def made(cure: Cure) -> Diagnosis:
    found = Finding("a_kind", 0.9, "", {}, (), "", cure)
    words = Finding("another", 0.95, "", {}, (), "", Cure("look at it"))
    return Diagnosis((Check("a check", "", (words, found)),), ())


def test_a_cure_in_words_alone_cannot_be_applied() -> None:
    assert first_applicable(made(Cure("use another loss"))) is None
    cure = Cure("use a rate of 1", settings={"lr": 1.0})
    assert first_applicable(made(cure)) == ("a_kind", cure)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.first(self.norm(x)).relu())


def test_a_conversion_is_applied_in_place() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(8, 3))
    x = torch.randn(16, 8)
    before = model(x)
    training = Training(model, (x, torch.arange(16) % 3), nn.CrossEntropyLoss(), SGD(model.parameters(), 0.1), float)
    words = applied(training, Cure("", ("rezero",), {"rezero": 0.1}, {"lr": 0.5}))
    assert words == "rezero, lr=0.5"
    assert training.model is model
    assert not torch.allclose(call(model, x), before)
    assert max(group["lr"] for group in training.optimizer.param_groups) == pytest.approx(0.5)
    held = {id(known) for group in training.optimizer.param_groups for known in group["params"]}
    assert held == {id(known) for known in model.parameters()}


def test_the_cure_of_a_maximized_loss_trains() -> None:
    (case,) = all_cases(names=["loss_maximized"])
    result = result_of(case)
    assert result is not None
    assert (result.kind, result.words, result.trains) == ("ascent", "maximize=False", True)
    assert not Result(case, "ascent", "maximize=True", case.below - 0.01).trains
