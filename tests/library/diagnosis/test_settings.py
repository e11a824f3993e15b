"""Settings of an optimizer that keep a batch from being fitted, each beside one that is unusual and works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

Make = Callable[[nn.Module], Optimizer]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 6))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    targets = torch.arange(120) % 6
    return 2 * torch.randn(6, 10)[targets] + 0.5 * torch.randn(120, 10), targets


def grouped(weights: float, biases: float, kind: Any = SGD, **options: Any) -> Make:
    def make(model: nn.Module) -> Optimizer:
        chosen = {True: [], False: []}  # type: dict[bool, list[Tensor]]
        for parameter in model.parameters():
            chosen[parameter.dim() > 1].append(parameter)
        groups = [{"params": chosen[True], "lr": weights}, {"params": chosen[False], "lr": biases}]
        made: Optimizer = kind(groups, **options)
        return made

    return make


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda m: Adam(m.parameters(), 1e-3, eps=10.0), "unusual_setting", "eps"),
        (lambda m: Adam(m.parameters(), 1e-3, eps=1e-4), "", ""),
        (lambda m: RMSprop(m.parameters(), 1e-2, eps=100.0), "unusual_setting", "eps"),
        (lambda m: Adam(m.parameters(), 1e-2, betas=(0.999, 0.9)), "swapped_betas", "0.999"),
        (lambda m: AdamW(m.parameters(), 1e-3, betas=(0.9, 0.95)), "", ""),
        (lambda m: SGD(m.parameters(), 0.1, 0.999), "effective_rate", "0.999"),
        (lambda m: SGD(m.parameters(), 1e-3, 0.99), "", ""),
        (lambda m: Adam(m.parameters(), 3e-3, weight_decay=1.0), "excessive_decay", "weight decay"),
        (lambda m: Adam(m.parameters(), 3e-3, weight_decay=1e-4), "", ""),
        (lambda m: AdamW(m.parameters(), 1e-3, weight_decay=0.3), "", ""),
        (grouped(0.05, 300.0, momentum=0.9), "rate_too_large", "group 1"),
        (grouped(0.05, 0.1, momentum=0.9), "", ""),
        (grouped(1e-9, 1e-2, AdamW), "rate_too_small", "group 0"),
        (grouped(1e-3, 1e-2, AdamW), "", ""),
    ],
)
def test_unusual_settings(make: Make, kind: str, said: str) -> None:
    model = network()
    diagnosis = diagnose(model, batch(), optimizer=make(model), trial_steps=20)
    assert kinds(diagnosis)[:1] == [kind] * bool(kind), str(diagnosis)
    assert not kind or said in diagnosis.findings[0].title


@pytest.mark.parametrize(("limit", "kind"), [(1e-6, "clipped_to_nothing"), (1.0, "")])
def test_hooks_that_clip_gradients(limit: float, kind: str) -> None:
    model = network()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-limit, limit))  # type: ignore[no-untyped-call]
    diagnosis = diagnose(model, batch(), optimizer=SGD(model.parameters(), 0.1), trial_steps=20)
    assert kinds(diagnosis)[:1] == [kind] * bool(kind), str(diagnosis)


def test_norms_outside_the_optimizer_are_advice() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 6))
    layers = [*model[0].parameters(), *model[3].parameters()]
    diagnosis = diagnose(model, batch(), optimizer=Adam(layers, 1e-2), trial_steps=20)
    assert diagnosis.healthy, str(diagnosis)
    assert "untrained_parameters" in [advice.kind for advice in diagnosis.advice]
    diagnosis = diagnose(model, batch(), optimizer=Adam(layers[:2], 1e-2), trial_steps=20)
    assert kinds(diagnosis)[:1] == ["untrained_parameters"]
