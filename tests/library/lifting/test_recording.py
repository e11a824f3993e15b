"""The calls of forward code in one pass: of functions and of modules, where, in which turn, and their obstacles."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.recording import Call

X = torch.randn(3, 4)


class Net(nn.Module):
    """Code of every kind around one layer, an activation that runs twice, and an adder."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), nn.ReLU()
        self.positions = nn.Parameter(torch.zeros(4))

    def scaled(self, x: Tensor, by: float) -> Tensor:
        """By a number."""
        return x * by

    def forward(self, x: Tensor) -> Tensor:
        x = self.scaled(self.act(self.layer(x)), 2.0)
        for rate in (0.1, 0.2, 0.3):
            x = F.leaky_relu(x, negative_slope=rate)
        x = self.scaled(self.act(x), 3.0)
        return x + F.gelu(self.positions + 1)


def calls_of(model: nn.Module, *inputs: Any) -> list[Call]:
    flow = nl.residual_map(model, *inputs).flow
    assert flow is not None
    return flow.calls


def named(calls: list[Call], name: str) -> list[Call]:
    return [call for call in calls if call.name == name]


def line_of(call: Call) -> str:
    """The source of the expression, by its columns."""
    assert call.place is not None
    first, last, start, end = call.place.position
    assert first == last
    return linecache.getline(call.place.routine.code.co_filename, first)[start:end]


def test_calls_are_in_order_with_what_they_were_given() -> None:
    calls = calls_of(Net(), X)
    names = [call.name for call in calls if call.module == ""]
    assert names == ["layer", "act", "mul", *["leaky_relu"] * 3, "act", "mul", "add", "gelu", "add"]
    assert [call.kwargs["negative_slope"] for call in named(calls, "leaky_relu")] == [0.1, 0.2, 0.3]
    assert all(call.args == (Tensor,) for call in named(calls, "leaky_relu"))
    assert all(call.function is F.leaky_relu for call in named(calls, "leaky_relu"))
    assert all(call.function is None for call in named(calls, "act"))


def test_places_are_expressions_and_turns_count_them() -> None:
    calls = calls_of(Net(), X)
    leaky = named(calls, "leaky_relu")
    assert {line_of(call) for call in leaky} == {"F.leaky_relu(x, negative_slope=rate)"}
    assert [call.turn for call in leaky] == [0, 1, 2]
    assert all(call.turns == leaky for call in leaky)
    assert [line_of(call) for call in named(calls, "act")] == ["self.act(self.layer(x))", "self.act(x)"]
    assert [call.turn for call in named(calls, "act")] == [0, 0]
    assert not any(call.obstacle for call in calls)


def test_a_method_of_several_calls_is_seen_from_each() -> None:
    products = named(calls_of(Net(), X), "mul")
    callers = [call.place.caller for call in products if call.place is not None]
    assert [caller.position[0] for caller in callers if caller is not None] == [
        line for line, text in _forward_lines() if "self.scaled(" in text
    ]
    assert [call.turn for call in products] == [0, 0]


def _forward_lines() -> list[tuple[int, str]]:
    lines, start = inspect.getsourcelines(Net.forward)
    return list(enumerate(lines, start))


class Repeated(nn.Module):
    """Adds as often as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, times: int) -> Tensor:
        for _ in range(times):
            x = x + self.layer(x)
        return x


class Twice(nn.Module):
    """Runs one module twice."""

    def __init__(self, times: tuple[int, int]) -> None:
        super().__init__()
        self.block, self.times = Repeated(), times

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.block(x, self.times[0]).relu(), self.times[1])


@pytest.mark.parametrize(("times", "is_free"), [((1, 1), True), ((2, 2), True), ((1, 2), False), ((0, 1), True)])
def test_runs_that_differ_are_an_obstacle(times: tuple[int, int], is_free: bool) -> None:
    additions = [call for call in calls_of(Twice(times), X) if call.module == "block" and call.name == "add"]
    assert len(additions) == sum(times)
    assert all((call.obstacle == "") is is_free for call in additions)


def shifted(x: Tensor) -> Tensor:
    """A function that is not a method."""
    return x + 1


@pytest.mark.parametrize("apply", [lambda x: shifted(x), lambda x: next(map(shifted, [x]))])
def test_functions_are_seen_from_the_method(apply: Callable[[Tensor], Tensor]) -> None:
    class Applied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return apply(self.layer(x))

    (added,) = named(calls_of(Applied(), X), "add")
    assert added.place is not None
    routines = [step.routine.name for step in added.place.chain()]
    assert routines[0] == "shifted"
    assert routines[-1] == "forward"
