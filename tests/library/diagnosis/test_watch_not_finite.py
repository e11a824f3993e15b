"""The first value of a watched training that is not finite: its module, operation and line, and what is unknown."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from watched import at, batch, mlp, train

import normless as nl

pytestmark = pytest.mark.filterwarnings("ignore::normless.WatchWarning")


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


class Quotient(Switch):
    def faulty(self, x: Tensor) -> Tensor:
        return (x * 0) / (x * 0).norm(dim=1, keepdim=True)


class Masked(Switch):
    def faulty(self, x: Tensor) -> Tensor:
        return x.masked_fill(torch.ones_like(x, dtype=torch.bool), float("-inf")).softmax(1)


class Rooted(Switch):
    def faulty(self, x: Tensor) -> Tensor:
        return torch.sqrt(x.relu() * 0) + x


class Power(Switch):
    def faulty(self, x: Tensor) -> Tensor:
        return (x * 0).pow(0.5)


class Recomputed(Switch):
    def faulty(self, x: Tensor) -> Tensor:
        return checkpoint(torch.log, x - 100, use_reentrant=False)


class Dropped(Switch):
    """0/0 wherever a unit is dropped."""

    def faulty(self, x: Tensor) -> Tensor:
        x = F.dropout(x.abs() + 1, 0.5, training=True)
        return x / x


# The first three and the last two are not finite in the forward pass, the others in the backward pass.
CODE: dict[type[Switch], tuple[str, str]] = {
    Logarithm: ("log", "(x - 100).log()"),
    Quotient: ("div", "(x * 0).norm"),
    Masked: ("softmax", "softmax(1)"),
    Rooted: ("sqrt", "torch.sqrt("),
    Power: ("pow", "(x * 0).pow(0.5)"),
    Recomputed: ("log", "checkpoint(torch.log"),
    Dropped: ("div", "return x / x"),
}


def network(kind: type[Switch]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), kind(), nn.BatchNorm1d(32), nn.Linear(32, 3))


def breaks(model: nn.Module) -> None:
    model[2].broken = True


def the_finding(watch: nl.Watch) -> nl.Finding:
    (found,) = (one for one in watch.findings if one.kind == "not_finite")
    return found


@pytest.mark.parametrize("kind", CODE)
@pytest.mark.parametrize("loss", [True, False])
def test_module_operation_and_line_are_those_of_the_code(kind: type[Switch], loss: bool) -> None:
    operation, code = CODE[kind]
    found = the_finding(train(network(kind), 9, before=at(8, breaks), loss=loss))
    assert (found.where, found.evidence["step"], found.evidence["operation"]) == (("2",), 8, operation)
    lines, start = inspect.getsourcelines(kind.faulty)
    number = start + next(number for number, line in enumerate(lines) if code in line)
    assert f"line {number} of test_watch_not_finite.py" in str(found.evidence["line"])
    assert code in found.title


def test_the_networks_own_code_has_the_networks_name() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.broken = mlp(), False

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            y = self.inner(x)
            return {"logits": y, "scale": torch.log(y.sum() * 0)} if self.broken else {"logits": y}

    model = Own()
    optimizer, watch = torch.optim.SGD(model.parameters(), 0.1), nl.watch(model)
    for step in range(4):
        model.broken = step == 3
        optimizer.zero_grad()
        value = torch.stack([one.mean() for one in model(x=batch()[0]).values()]).sum()
        watch.loss(value).backward()
        optimizer.step()
    found = the_finding(watch)
    assert (found.evidence["operation"], found.evidence["step"]) == ("log", 4)
    assert "torch.log(y.sum() * 0)" in found.title


def test_weights_statistics_and_inputs_that_are_not_finite_are_named() -> None:
    """An infinite bias is said in test_watch."""
    found = the_finding(train(mlp(), 9, before=at(8, lambda model: model[0].weight[3].fill_(torch.nan))))
    assert found.where == ("0.weight",)
    assert "0.weight" in found.title
    model = network(Switch)
    model[3].eval()
    found = the_finding(train(model, 9, before=at(8, lambda model: model[3].running_var.fill_(torch.nan))))
    assert found.where == ("3.running_var",)
    x, y = batch()
    x[5, 1] = torch.nan
    title = the_finding(train(mlp(), 1, data=lambda: (x, y))).title
    assert "input values" in title
    assert "example 5" in title


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


def test_of_several_passes_the_last_is_seen_and_that_is_said() -> None:
    model = network(Logarithm)
    optimizer, watch = torch.optim.SGD(model.parameters(), 0.1), nl.watch(model)
    for broken in (True, False):
        x, y = batch()
        model[2].broken = broken
        watch.loss(F.cross_entropy(model(x), y)).backward()
    optimizer.step()
    found = the_finding(watch)
    assert found.evidence["passes"] == 2
    assert "2 passes" in found.title


def test_a_closure_is_no_second_training() -> None:
    model = network(Logarithm)
    model[2].broken = True
    watch, (x, y) = nl.watch(model), batch()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(model(x), y)
        value.backward()
        return value

    optimizer.step(closure)
    found = the_finding(watch)
    assert (found.where, found.evidence["operation"]) == (("2",), "log")


@pytest.mark.parametrize("kind", [Logarithm, Rooted, Dropped])
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


def test_a_pass_that_cannot_be_made_again_is_said() -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.runs = nn.Linear(20, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.runs += 1
            if self.runs > 1:
                raise RuntimeError("only once")
            return self.layer(x) / 0

    model = Once()
    optimizer, watch = torch.optim.SGD(model.parameters(), 0.1), nl.watch(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watch.loss(model(batch()[0]).sum()).backward()
        optimizer.step()
    assert "only once" in "".join(watch.messages)
    assert "its layer is unknown" in the_finding(watch).title


def test_an_overflow_in_float16_is_named_with_what_it_makes_nan() -> None:
    class Exponential(Switch):
        def faulty(self, x: Tensor) -> Tensor:
            return (x.relu() + 20).exp()

    model = network(Exponential).half()
    model[2].broken = True
    optimizer, watch = torch.optim.SGD(model.parameters(), 0.1), nl.watch(model)
    x, y = batch()
    watch.loss(F.cross_entropy(model(x.half()).float(), y)).backward()
    optimizer.step()
    found = the_finding(watch)
    assert (found.where, found.evidence["operation"]) == (("3",), "batch_norm")
    assert "infinite since exp at line" in found.title
