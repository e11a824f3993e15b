"""A removal in a loop: outputs before, what is frozen and taken back, resumption, and wrappers."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from removed import QUICK, TOKENS, LanguageModel, next_token, relative, train, with_random_affines
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl

VECTORS = torch.randn(5, 7, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def net() -> Any:
    torch.manual_seed(0)
    return with_random_affines(LanguageModel())


def test_the_network_computes_the_same_before_with_its_own_parameters_and_names(net: Any) -> None:
    expected, names, parameters = net(TOKENS), list(net.state_dict()), list(net.parameters())
    modes = [module.training for module in net.modules()]
    only = nl.remove_norms(deepcopy(net), TOKENS, only="blocks.1")
    assert set(only.places) == {"blocks.1.ln_1", "blocks.1.ln_2"}
    attention = nl.remove_norms(deepcopy(net), TOKENS, order=("attention",))
    assert set(attention.places) == {"blocks.0.ln_1", "blocks.1.ln_1"}
    removal = nl.remove_norms(net, TOKENS)
    assert relative(net(TOKENS), expected) < 1e-5
    assert list(net.state_dict()) == names
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    assert [module.training for module in net.modules()] == modes
    layers = {
        f"blocks.{at}.ln_{part}": place for at in (0, 1) for part, place in ((1, "attention"), (2, "feed_forward"))
    }
    assert removal.places == layers | {"ln_f": "final"}
    assert len(removal.plan) == 5


def test_norms_are_frozen_by_place_and_the_gradient_of_a_frozen_norm_is_that_of_a_constant(net: Any) -> None:
    removal = nl.remove_norms(net, TOKENS, **QUICK)
    assert train(net, removal) == 12
    order = ["blocks.0.ln_2", "blocks.1.ln_2", "blocks.0.ln_1", "blocks.1.ln_1", "ln_f"]
    assert [(freezing.path, freezing.step) for freezing in removal.history] == [
        *zip(order, (2, 4, 6, 8, 10), strict=True)
    ]
    norm, x = net.ln_f, torch.randn(2, 3, 8, requires_grad=True)
    y = (x - x.mean(-1, keepdim=True)) / norm.constant[1] * norm.weight + norm.bias
    gradients = [torch.autograd.grad(output.square().sum(), x)[0] for output in (norm(x), y)]
    assert relative(*gradients) < 1e-5


def test_the_auxiliary_loss_is_the_relative_variance_of_the_spread() -> None:
    net = Written(lambda net, x: net.last(net.norm(x)), norm=nn.LayerNorm(8), last=nn.Linear(8, 2))
    removal = nl.remove_norms(net, VECTORS, start=5, spread_weight=0.3)
    first = removal.loss(net.train()(VECTORS).mean())
    assert first.item() == pytest.approx(net(VECTORS).mean().item())  # nothing is known of the norm yet
    removal.step()
    x = (2 * VECTORS).requires_grad_()
    value = net(x).mean()
    whole, spread = removal.loss(value), x.std(2, correction=0)
    first_tokens, others = (part.mean() for part in VECTORS.std(2, correction=0).split([1, 6], 1))  # type: ignore[no-untyped-call]
    average = torch.cat([first_tokens.expand(5, 1), others.expand(5, 6)], 1)
    expected = value + 0.3 * (spread / average - 1).square().mean()
    assert whole.item() == pytest.approx(expected.item(), rel=1e-4)
    gradients = [torch.autograd.grad(loss, x, retain_graph=True)[0] for loss in (whole, expected)]
    assert relative(*gradients) < 1e-3


def test_a_freezing_that_costs_much_is_taken_back_and_the_norm_normalizes_again(net: Any) -> None:
    removal = nl.remove_norms(net, TOKENS, start=2, interval=2, attempts=2, tolerance=0.01)
    for value in (1.0, 1.0, 5.0):
        next_token(net.train())
        removal.loss(torch.tensor(value, requires_grad=True))
        removal.step()
    (freezing,) = removal.history
    assert (freezing.outcome, removal.frozen) == ("taken back", ())
    assert freezing.cost == pytest.approx(4)
    x, norm = torch.randn(2, 3, 8), net.get_submodule(freezing.path)
    assert relative(norm(x), F.layer_norm(x, (8,), norm.weight, norm.bias)) < 1e-5
    assert "taken back" in str(removal)


def test_a_norm_that_is_set_aside_stays_a_norm(net: Any) -> None:
    removal = nl.remove_norms(net, TOKENS, start=1, interval=1, attempts=1, tolerance=0.5, spread_weight=0.0)

    def loss(net: nn.Module) -> Tensor:
        watched = removal._schedule.watched
        return next_token(net) + (9.0 if watched is not None and watched.path == "ln_f" else 0.0)

    train(net, removal, loss)
    assert (removal.done, removal.left) == (True, ("ln_f",))
    with pytest.raises(nl.errors.UnsupportedEditError, match=r"Not all norms .* ln_f \(set aside after 1 attempts\)"):
        removal.finish()
    folded, report = nl.fold(removal.finish(allow_partial=True).eval(), TOKENS)
    assert isinstance(folded.get_submodule("ln_f"), nn.LayerNorm)
    assert report.counts == {"folded": 4, "affine": 0, "kept": 1}
    assert relative(folded(TOKENS), net(TOKENS)) < 1e-5


def test_a_resumed_removal_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    def begin() -> tuple[Any, nl.affine.Removal, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = LanguageModel(nn.RMSNorm, tied=True)
        with torch.no_grad():
            net.positions[0] *= 30
        removal = nl.remove_norms(net, TOKENS, start=3, interval=2, tolerance=0.02)
        return net, removal, torch.optim.AdamW(net.parameters(), lr=1e-2)

    def go(net: nn.Module, removal: nl.affine.Removal, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            tokens = (TOKENS + step) % 20
            train(net, removal, lambda net, tokens=tokens: next_token(net, tokens), optimizer, range(1))  # type: ignore[misc]

    whole, first, second = begin(), begin(), begin()
    go(*whole, range(40))
    go(*first, range(6))
    torch.save([part.state_dict() for part in first], tmp_path / "checkpoint.pt")
    for part, state in zip(second, torch.load(tmp_path / "checkpoint.pt", weights_only=True), strict=True):
        part.load_state_dict(state)
    go(*second, range(6, 40))
    assert second[1].history == whole[1].history
    assert {freezing.outcome for freezing in whole[1].history} >= {"frozen", "taken back"}
    for name, value in whole[0].state_dict().items():
        assert torch.equal(second[0].state_dict()[name], value)
    for path in whole[1].places:
        a, b = (dict(part.get_submodule(path).named_buffers()) for part in (whole[0], second[0]))
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_compiled_and_distributed_networks_are_as_the_plain_one(net: Any, tmp_path: Path) -> None:
    """A compiled network is compiled once whatever is frozen."""
    counts: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        counts.append(len(graph.graph.nodes))
        return graph.forward

    nets: list[Any] = [net, deepcopy(net), deepcopy(net)]
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        made = (net, torch.compile(nets[1], backend=backend), nn.parallel.DistributedDataParallel(nets[2]))
        histories = []
        for model in made:
            removal = nl.remove_norms(model, TOKENS, **QUICK)  # type: ignore[arg-type]
            train(model, removal, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))  # type: ignore[arg-type, union-attr]
            histories.append(removal.history)
        assert removal.finish() is made[2]
    finally:
        distributed.destroy_process_group()
    assert len(counts) <= 2
    assert histories[2] == histories[0]
    assert [one.after for one in histories[1]] == pytest.approx([one.after for one in histories[0]], rel=1e-4)
    for a, b in zip(net.parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_it_says_how_many_steps_are_left_and_no_number_that_was_not_measured(net: Any) -> None:
    """Three steps of measuring and two for each norm, if no freezing is taken back and all tokens are alike."""
    removal = nl.remove_norms(net, TOKENS, start=3, interval=2, tolerance=1e9, first_token=False, spread_weight=0.0)
    count = len(removal.left)
    assert f"{count} norms, 0 frozen, step 0; at least {3 + 2 * count} more steps" in str(removal)
    steps = 0
    while not removal.done:
        before = removal.steps_left
        removal.loss(net(TOKENS).float().mean())
        removal.step()
        steps += 1
        assert removal.steps_left == before - 1
        assert "nan" not in str(removal)
    assert steps == 3 + 2 * count
    assert f"{count} frozen, step {steps}; done: finish() ends it" in str(removal)
    removal.finish()
