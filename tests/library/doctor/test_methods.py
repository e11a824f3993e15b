"""Networks of methods without forward, `call=`, and optimizers in wrappers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.n, self.a, self.b = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.actor, self.critic, self.idle = nn.Linear(16, 3), nn.Linear(16, 1), nn.Linear(16, 16)

    def evaluate(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x)
        h = h + self.b(torch.relu(self.a(self.n(h))))
        # It checks values, which decide nothing else.
        policy = torch.distributions.Categorical(logits=self.actor(h), validate_args=None)
        return policy.log_prob(action), self.critic(h).squeeze(-1)


class WithForward(ActorCritic):
    def forward(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return self.evaluate(x, action)

    def total(self, x: Tensor, action: Tensor) -> Tensor:
        return torch.stack(self(x, action)).sum(0)


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(16, 6)
    return x, x[:, :3].argmax(1)


@pytest.mark.parametrize("call", ["evaluate", lambda net, x, action: net.evaluate(x, action)])
def test_a_method_is_followed_as_a_forward_pass_with_its_code_is(call: Any) -> None:
    net, twin, inputs = ActorCritic(), WithForward(), data()
    expected = nl.residual_map(twin, *inputs)
    assert nl.residual_map(net, *inputs, call=call).to_dict() == expected.to_dict()
    # A method that calls the network finds the network's own forward.
    assert nl.residual_map(twin, *inputs, call="total").depth == expected.depth == 1
    made, other = nl.convert(net, "dyt", *inputs, call=call), nl.convert(twin, "dyt", *inputs)
    assert all(map(torch.equal, made.evaluate(*inputs), other(*inputs)))
    groups = nl.param_groups(net, *inputs, lr=0.1, weight_decay=0.1, call=call)
    assert sum(len(group["params"]) for group in groups) == len([*net.parameters()])

    def loss(out: tuple[Tensor, Tensor], batch: tuple[Any, Tensor]) -> Tensor:
        return -out[0].mean() + (out[1] - batch[1]).square().mean()

    target = torch.randn(16)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    diagnosis = nl.diagnose(net, (inputs, target), loss=loss, optimizer=optimizer, call=call)
    assert not [found for found in diagnosis.findings if found.severity > 0.5]
    assert nl.probe(net, (inputs, target), loss=loss, call=call).loss == pytest.approx(
        loss(net.evaluate(*inputs), (inputs, target)).item(), rel=1e-5
    )
    assert not {"forward", "evaluate"} & {*vars(net), *vars(made), *vars(twin)}


def test_what_to_do_without_forward_is_said() -> None:
    net, inputs = ActorCritic(), data()
    for function in (nl.residual_map, nl.diagnose):
        with pytest.raises(nl.NormlessError, match=r"has no forward that runs; .* \(evaluate\), .* call=…"):
            function(net, inputs)
    for function in (nl.residual_map, nl.watch):
        with pytest.raises(ValueError, match=r"a method of ActorCritic \(evaluate\).* got 'act'"):
            function(net, call="act")


def train(net: ActorCritic, fault: str = "", steps: int = 60) -> nl.doctor.Watch:
    optimizer, watch = torch.optim.SGD(net.parameters(), 0.01), nl.watch(net)
    for _ in range(steps):
        if fault != "kept_gradients":
            optimizer.zero_grad()
        x, action = data()
        log_probability, value = net.evaluate(x, action)
        (-log_probability.mean() + (value - x[:, 0]).square().mean()).backward()
        if fault != "never_stepped":
            optimizer.step()
    watch.close()
    return watch


@pytest.mark.filterwarnings("ignore::normless.doctor.WatchWarning")
@pytest.mark.parametrize("fault", ["", "kept_gradients", "never_stepped", "untrained_parameters"])
def test_the_loop_is_judged_where_no_forward_pass_can_be_seen(fault: str) -> None:
    net = ActorCritic()
    if fault != "untrained_parameters":
        del net.idle
    watch = train(net, fault)
    assert {found.kind for found in watch.findings} == ({fault} if fault else set())
    if fault == "untrained_parameters":
        assert watch.findings[0].where == ("idle.weight", "idle.bias")


def test_a_watched_method_is_measured_and_copies_have_their_own() -> None:
    net = ActorCritic()
    del net.idle
    watch = nl.watch(net, call="evaluate")
    optimizer, (x, action) = torch.optim.SGD(net.parameters(), 0.01), data()
    twin = copy.deepcopy(net)
    for _ in range(3):
        optimizer.zero_grad()
        (-net.evaluate(x, action)[0].mean() + net.evaluate(x, action)[1].square().mean()).backward()
        optimizer.step()
    assert not watch.findings
    assert {"first", "critic"} <= {*watch.table.query("quantity == 'output'")["place"]}
    assert not torch.equal(twin.evaluate(x, action)[0], net.evaluate(x, action)[0])
    watch.close()
    assert "evaluate" not in vars(net)


class Wrapper:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


class Delegate(Wrapper, torch.optim.Optimizer):
    """As accelerate's: an optimizer that did not call `Optimizer.__init__`."""

    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)


@pytest.mark.filterwarnings("ignore::normless.doctor.WatchWarning")
@pytest.mark.parametrize("kind", [Wrapper, Delegate])
def test_optimizers_in_wrappers_and_lists_are_those_inside_and_not_changed(kind: Any) -> None:
    torch.manual_seed(0)
    net, (x, y) = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), data()
    several = [kind(torch.optim.Adam([known], 1e-2)) for known in net.parameters()]
    assert not nl.diagnose(net, (x, y), optimizer=several).findings
    for each in several:
        each.param_groups[0]["lr"] = 0.0
    assert [found.kind for found in nl.diagnose(net, (x, y), optimizer=several).findings] == ["zero_rate"]
    watch = nl.watch(net)
    for each in several:
        each.param_groups[0]["lr"] = 1e-4
    for _ in range(8):
        F.cross_entropy(net(x), y).backward()
        for each in several:
            each.step()
    assert [found.kind for found in watch.findings][:1] == ["kept_gradients"]
