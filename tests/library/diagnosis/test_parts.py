"""Parts of the checks: parameters of optimizers, reshapes that move an axis, experiments, and unusual inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from normless.diagnosis.held import held, held_by, held_elsewhere, named_groups
from normless.diagnosis.reshapes import moved_axis
from tests.faults.catalogue import Training, catalogue
from tests.faults.checks.rows import layers, numbers
from tests.faults.diagnosers import diagnosis_of
from tests.faults.training import module


def test_parameters_of_optimizers() -> None:
    network = layers(4, 32, 2)
    first, last = network[0], network[2]
    groups = [{"params": [first.weight]}, {"params": [first.bias, last.bias.requires_grad_(False)], "lr": 0.2}]
    optimizer, other = SGD(groups, 0.1), Adam(last.parameters())
    assert [id(known) for known in held(optimizer)] == [id(first.weight), id(first.bias), id(last.bias)]
    assert held(None) == []
    assert held_by(optimizer, {id(first.weight): "0.weight", id(last.weight): "2.weight"}).keys() == {"0.weight"}
    assert {id(last.weight), id(last.bias)} <= held_elsewhere(optimizer)
    assert id(first.weight) not in held_elsewhere(optimizer)
    named = [(group.number, group.settings["lr"], group.names) for group in named_groups(optimizer, network)]
    assert named == [(0, 0.1, ("0.weight",)), (1, 0.2, ("0.bias",))]
    del other


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ((8, 12, 10, 3), (8, 3, 12, 10), True),
        ((8, 11, 20), (8, 20, 11), True),
        ((16, 9, 24), (16, 4, 9, 6), True),
        ((8, 5, 12, 11), (1056, 5), True),
        ((11, 8, 20), (8, 220), True),
        ((16, 9, 24), (16, 9, 4, 6), False),
        ((8, 5, 12, 11), (8, 660), False),
        ((8, 12, 11, 5), (1056, 5), False),
        ((6, 16, 16, 12), (6, 4, 4, 4, 4, 12), False),
        ((6, 16, 1), (6, 1, 16), False),
        # Heads of width 8 join 8 examples; relative positions are shifted.
        ((11, 8, 32), (11, 32, 8), False),
        ((6, 10, 11), (6, 11, 10), False),
    ],
)
def test_reshapes_that_move_an_axis(before: tuple[int, ...], after: tuple[int, ...], moved: bool) -> None:
    assert torch.zeros(before).reshape(after).shape == after
    assert (moved_axis(before, after, examples=8) is not None) == moved


def test_experiments_are_left_out_if_asked() -> None:
    (case,) = catalogue(names=["values_of_a_ten_millionth"])
    training = case.build(broken=True)
    assert isinstance(training, Training)
    (found, *_) = diagnosis_of(training).findings
    assert found.kind == "prevented_by_operation"
    assert float(found.evidence["loss_changed"]) < 0.5
    training.options = {"trial_steps": 20, "investigate": False}
    assert "prevented_by_operation" not in kinds(diagnosis_of(training))


def test_initial_weights_that_prevent_the_fit() -> None:
    model = layers(12, 64, 64, 4)
    nn.init.constant_(model[2].bias, -5.0)
    diagnosis = diagnose(model, numbers(32, 12, 4), optimizer=Adam(model.parameters(), 1e-3), trial_steps=20)
    assert [found.where for found in diagnosis.findings if found.kind == "prevented_by_weights"] == [("2",)]


def read(self: Any, x: Tensor | list[Tensor]) -> Tensor:
    if isinstance(x, list):
        return torch.stack([self.body(row) for row in x])
    dense = x.to_dense() if x.is_sparse else x
    return self.body(dense.real if dense.is_complex() else dense)


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "list": lambda x: ([*x],),
    "sparse": Tensor.to_sparse,
    "complex": lambda x: x + 1j,
}


@pytest.mark.parametrize("form", FORMS)
def test_inputs_of_other_types(form: str) -> None:
    x, y = numbers(24, 8, 3)
    assert not kinds(diagnose(module(read, body=layers(8, 32, 3)), (FORMS[form](x), y), loss=F.cross_entropy))


def test_complex_outputs() -> None:
    model = module(lambda self, x: torch.fft.rfft(self.body(x)), body=layers(8, 64, 16))
    batch = torch.randn(32, 8), torch.fft.rfft(torch.randn(32, 16))
    optimizer = Adam(model.parameters(), 1e-2)
    diagnosis = diagnose(model, batch, loss=lambda o, t: (o - t).abs().square().mean(), optimizer=optimizer)
    assert not kinds(diagnosis), str(diagnosis)
