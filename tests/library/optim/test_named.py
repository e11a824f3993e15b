"""Optimizers by name, and Lion and Muon against what they are defined to be."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from written_networks import Written

from normless.optim import OPTIMIZERS, Lion, make_optimizer, muon, param_groups
from normless.probes import descend

INPUTS = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
NAMES = [name for name in OPTIMIZERS if name not in ("LBFGS", "SparseAdam") and (name != "Muon" or muon.OF_MATRICES)]


def network() -> Any:
    """A perceptron with one residual block, always of the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = {"first": nn.Linear(6, 8), "hidden": nn.Linear(8, 8), "last": nn.Linear(8, 3)}
        return Written(lambda m, x: m.last((h := m.first(x)) + m.hidden(m.norm(h))), **layers, norm=nn.LayerNorm(8))


def step(model: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = 3) -> list[Tensor]:
    for _ in range(steps):
        model.zero_grad()
        model(INPUTS).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("rate", [0.01, torch.tensor(0.01, dtype=torch.float64)])
def test_lion_is_algorithm_2_of_its_paper(rate: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    w = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    trained, idle = nn.Parameter(w.clone()), nn.Parameter(w.clone())
    optimizer = Lion([trained, idle], lr=rate, betas=(0.8, 0.95), weight_decay=0.1)
    m = torch.zeros_like(w)
    for _ in range(5):
        g = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        w = w - 0.01 * (torch.sign(0.8 * m + 0.2 * g) + 0.1 * w)
        m = 0.95 * m + 0.05 * g
        before = idle.detach().clone()
        trained.grad = g
        optimizer.step()
        # Without a gradient a parameter stays, and does not decay.
        assert torch.equal(idle, before)
    torch.testing.assert_close(trained.data, w)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_muon_is_the_two_optimizers_on_their_groups() -> None:
    model, other = network(), network()
    optimizer = make_optimizer("Muon(lr=0.02, weight_decay=0.05)", model, INPUTS)
    groups = param_groups(other, INPUTS, lr=0.02, weight_decay=0.05, muon_lr=0.02)
    assert [id(parameter) for group in groups.muon for parameter in group["params"]] == [id(other.hidden.weight)]
    of_muon = torch.optim.Muon(groups.muon, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    hooked: list[str] = []
    handle = register_optimizer_step_pre_hook(lambda hooking, *_: hooked.append(type(hooking).__module__))
    own = step(model, optimizer)
    handle.remove()
    assert hooked == ["normless.optim.muon"] * 3
    assert all(map(torch.equal, own, step(other, of_muon, torch.optim.AdamW(groups.rest))))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_a_copy_and_a_restored_muon_go_on_alike() -> None:
    model = network()
    optimizer = make_optimizer("Muon", model, INPUTS)
    step(model, optimizer)
    copied_model, copied = deepcopy((model, optimizer))
    restored_model = network()
    restored = make_optimizer("Muon", restored_model, INPUTS)
    restored_model.load_state_dict(model.state_dict())
    restored.load_state_dict(deepcopy(optimizer.state_dict()))
    expected = step(model, optimizer)
    for other, its in ((copied_model, copied), (restored_model, restored)):
        assert all(map(torch.equal, step(other, its), expected))


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_trains_the_groups_by_role(name: str) -> None:
    model = network()
    optimizer = make_optimizer(name, model, INPUTS)
    assert {group["name"] for group in optimizer.param_groups} > {"biases"}
    losses = list(descend(model, [(INPUTS, INPUTS[:, :3])] * 20, optimizer, loss=nn.MSELoss()))
    assert losses[-1] < losses[0]


def test_an_older_torch_has_no_muon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "OF_MATRICES", ())
    with pytest.raises(ValueError, match="Muon needs torch"):
        make_optimizer("Muon", network(), INPUTS)
