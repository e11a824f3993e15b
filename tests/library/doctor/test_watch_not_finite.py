"""The first value of a watched training that is not finite: its module, operation and line, and what is unknown."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from watched import at, batch, mlp, train

import normless as nl

pytestmark = pytest.mark.filterwarnings("ignore::normless.doctor.WatchWarning")


class Switch(nn.Module):
    """The identity until it is broken, then what a subclass computes."""

    broken = False

    def forward(self, x: Tensor) -> Tensor:
        return self.faulty(x) if self.broken else x

    def faulty(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Logarithm(Switch):
    def faulty(self, x: Tensor) -> Tensor:
        return (x - 100).log()


class Rooted(Switch):
    def faulty(self, x: Tensor) -> Tensor:
        return torch.sqrt(x.relu() * 0) + x


class Recomputed(Switch):
    def faulty(self, x: Tensor) -> Tensor:
        return checkpoint(torch.log, x - 100, use_reentrant=False)


class Dropped(Switch):
    """0/0 wherever a unit is dropped."""

    def faulty(self, x: Tensor) -> Tensor:
        x = F.dropout(x.abs() + 1, 0.5, training=True)
        return x / x


# All but the second are not finite in the forward pass.
CODE: dict[type[Switch], tuple[str, str]] = {
    Logarithm: ("log", "(x - 100).log()"),
    Rooted: ("sqrt", "torch.sqrt("),
    Recomputed: ("log", "checkpoint(torch.log"),
    Dropped: ("div", "return x / x"),
}


def network(kind: type[Switch]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), kind(), nn.BatchNorm1d(32), nn.Linear(32, 3))


def breaks(model: nn.Module) -> None:
    model[2].broken = True


def the_finding(watch: nl.doctor.Watch) -> nl.doctor.Finding:
    (found,) = (one for one in watch.findings if one.kind == "not_finite")
    return found


@pytest.mark.parametrize("kind", CODE)
def test_module_operation_and_line_are_those_of_the_code(kind: type[Switch]) -> None:
    operation, code = CODE[kind]
    found = the_finding(train(network(kind), 9, before=at(8, breaks)))
    assert (found.where, found.evidence["step"], found.evidence["operation"]) == (("2",), 8, operation)
    lines, start = inspect.getsourcelines(kind.faulty)
    number = start + next(number for number, line in enumerate(lines) if code in line)
    assert f"line {number} of test_watch_not_finite.py" in str(found.evidence["line"])
    assert code in found.title


def log_of_zero(y: Tensor) -> Tensor:
    return torch.log(y.softmax(1) * 0).mean()


def angle(y: Tensor) -> Tensor:
    one = F.normalize(y, dim=1)
    return torch.acos((one * one.detach()).sum(1).clamp(max=1) * 0 + 1).mean()


@pytest.mark.parametrize(("loss", "operation", "what"), [(log_of_zero, "Log", "loss"), (angle, "Acos", "gradient")])
@pytest.mark.parametrize("keeps", [True, False])
def test_in_the_loss_no_layer_is_named(
    loss: Callable[[Tensor], Tensor], operation: str, what: str, keeps: bool
) -> None:
    model = mlp()
    optimizer, watch = torch.optim.SGD(model.parameters(), 0.1), nl.watch(model)
    value = watch.loss(loss(model(batch()[0])))
    value.backward()
    if not keeps:
        del value
    optimizer.step()
    found = the_finding(watch)
    assert (found.where, found.evidence["what"]) == ((), what)
    assert "the loss" in found.title
    assert (operation in found.title) == keeps
    assert "nl.diagnose" in found.cure.words


@pytest.mark.parametrize("kind", [Rooted, Dropped])
def test_the_search_changes_nothing_of_the_training(kind: type[Switch]) -> None:
    """Gradients, statistics, random numbers and what hooks on gradients do are those of a plain training."""
    ends = []
    for is_watched in (True, False):
        model = network(kind)
        model[2].broken = True
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        calls: list[int] = []
        for one in model.parameters():
            one.register_post_accumulate_grad_hook(lambda _, calls=calls: calls.append(1))
        watch = nl.watch(model) if is_watched else None
        torch.manual_seed(3)
        x = torch.randn(32, 20, requires_grad=True)
        F.cross_entropy(model(x * 2), torch.zeros(32, dtype=torch.long)).backward()
        optimizer.step()
        assert watch is None or the_finding(watch).where == ("2",)
        state = copy.deepcopy(model.state_dict())
        ends.append((*state.values(), x.grad, torch.rand(3), torch.tensor(len(calls))))
    for watched_one, plain in zip(*ends, strict=True):
        torch.testing.assert_close(watched_one, plain, equal_nan=True, rtol=0, atol=0)
