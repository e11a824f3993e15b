"""What is said of networks that train all the same, beside those of which nothing is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diagnosed import kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR

from tests.faults.catalogue import Training, catalogue
from tests.faults.checks.rows import given, layers, numbers
from tests.faults.diagnosers import diagnosis_of
from tests.faults.training import module


def a_warm_up_that_starts_at_zero() -> Training:
    model = layers(12, 32, 6)
    optimizer = Adam(model.parameters(), 1e-2)
    LambdaLR(optimizer, lambda step: step / 10)
    return given(model, *numbers(), optimizer=optimizer, trial_steps=10)


def attention_over_the_examples() -> Training:
    """On purpose: the batch is a set."""

    def forward(self: Any, x: Tensor) -> Any:
        h = self.body(x)[None]
        return self.head((h + self.attention(h, h, h)[0])[0])

    parts: dict[str, Any] = {"body": nn.Linear(12, 16), "head": nn.Linear(16, 6)}
    return given(module(forward, **parts, attention=nn.MultiheadAttention(16, 2, batch_first=True)), *numbers())


def a_channel_that_is_not_read() -> Training:
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    model = module(lambda self, x: self.body(x[:, :3]), body=body)
    return given(model, torch.randn(24, 4, 6, 6), torch.arange(24) % 3)


def one_unit_that_suffices() -> Training:
    x = torch.linspace(-1, 1, 64)[:, None] * torch.arange(1, 13)[None] / 6
    model = nn.Sequential(nn.Linear(12, 1), nn.Linear(1, 12))
    return given(model, x, x, F.mse_loss, Adam(model.parameters(), 0.1), trial_steps=60)


def of_row(name: str) -> Callable[[], Training | object]:
    """The healthy training of a row of the catalogue."""
    (case,) = catalogue(names=[name])
    return lambda: case.build(broken=False)


ADVICE = {
    "zero_rate": a_warm_up_that_starts_at_zero,
    "mixes_examples": attention_over_the_examples,
    "unread_part": a_channel_that_is_not_read,
    "one_unit": one_unit_that_suffices,
    "unread_input": of_row("argument_never_read"),
    "unordered": of_row("sum_of_tokens_without_positions"),
    "kept_state": of_row("state_with_its_graph"),
    "untrained_parameters": of_row("last_layer_outside_the_optimizer"),
    "unscaled_inputs": of_row("large_inputs_that_train"),
    "absent_class": of_row("class_that_no_label_has"),
}


@pytest.mark.parametrize("kind", ADVICE)
def test_advice(kind: str) -> None:
    torch.manual_seed(0)
    training = ADVICE[kind]()
    assert isinstance(training, Training)
    diagnosis = diagnosis_of(training)
    assert kind not in kinds(diagnosis)
    assert kind in [advice.kind for advice in diagnosis.advice], str(diagnosis)
