"""Optimizers of runs: their settings as text and fields, and that a run resumes with their exact state."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from normless.optim import OPTIMIZERS, make_optimizer
from normless_lab.train import TrainConfig
from normless_lab.train._optimizers import restored_exactly

KIND: Any = TrainConfig
NAMES = [name for name in OPTIMIZERS if name not in ("LBFGS", "SparseAdam")]


def test_text_and_fields_are_one_configuration() -> None:
    by_text = KIND(optimizer="AdamW(weight_decay=0.05, lr=1e-3, eps=1e-6, amsgrad=False)")
    by_field = KIND(optimizer="AdamW(eps=0.000001)", rate=1e-3, weight_decay=0.05)
    assert by_text == by_field
    assert by_text.hash == by_field.hash
    assert by_text.optimizer == "AdamW(eps=1e-06)"
    assert (by_text.rate, by_text.weight_decay, by_text.momentum, by_text.nesterov) == (1e-3, 0.05, 0.0, False)
    assert TrainConfig.from_dict(by_text.to_dict()) == by_text
    assert replace(by_text, rate=2e-3).rate == 2e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_is_restored_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    """Two further steps of a restored optimizer are those of the one that was saved."""
    torch.manual_seed(0)
    model, other = (
        nn.Sequential(*(nn.Linear(4, 4, bias=name != "Muon") for _ in range(3))).to(dtype) for _ in range(2)
    )
    batches = torch.randn(4, 8, 4).to(dtype)

    def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
        for number in numbers:
            optimizer.zero_grad()
            model(batches[number]).square().sum().backward()
            optimizer.step()

    optimizer, restored = (make_optimizer(name, trained, batches[0]) for trained in (model, other))
    take_steps(model, optimizer, range(2))
    other.load_state_dict(model.state_dict())
    with restored_exactly(restored):
        restored.load_state_dict(deepcopy(optimizer.state_dict()))
    take_steps(model, optimizer, range(2, 4))
    take_steps(other, restored, range(2, 4))
    for saved, own in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(saved, own)
        for key, value in optimizer.state[saved].items():
            torch.testing.assert_close(restored.state[own][key], value, rtol=0, atol=0)


def test_kernels_of_the_checkpoint_are_not_taken_over() -> None:
    """As of a run that began on a card: its steps are counted there, and its rate is a tensor."""
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    here = torch.optim.AdamW([other], lr=0.1)
    there = torch.optim.AdamW([weight], lr=torch.tensor(0.1), fused=True)
    for parameter, optimizer in ((weight, there), (other, here)):
        parameter.grad = torch.ones(2)
        optimizer.step()
    with restored_exactly(here):
        here.load_state_dict(there.state_dict())
    (group,) = here.param_groups
    assert (group["fused"], group["capturable"], group["lr"]) == (None, False, pytest.approx(0.1))
    here.step()
    assert here.state[other]["step"] == 2
