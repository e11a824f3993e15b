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
from written_networks import Written

import normless as nl
from normless.recording import Call

X = torch.randn(3, 4)


class Net(nn.Module):
    """Code of every kind around one layer, an activation that runs twice, and an adder."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act, self.positions = nn.Linear(4, 4), nn.ReLU(), nn.Parameter(torch.zeros(4))

    def scaled(self, x: Tensor, by: float) -> Tensor:
        return x * by

    def forward(self, x: Tensor) -> Tensor:
        x = self.scaled(self.act(self.layer(x)), 2.0)
        for rate in (0.1, 0.2, 0.3):
            x = F.leaky_relu(x, negative_slope=rate)
        x = self.scaled(self.act(x), 3.0)
        return x + F.gelu(self.positions + 1)


def calls_of(model: nn.Module, *inputs: Any) -> dict[str, list[Call]]:
    """The calls of the root in order, by name."""
    flow = nl.residual_map(model, *inputs).flow
    assert flow is not None
    named: dict[str, list[Call]] = {"": flow.calls}
    for call in flow.calls:
        named.setdefault(call.name, []).append(call)
    return named


def source_of(call: Call) -> str:
    """The source of the expression, by its columns."""
    assert call.place is not None
    first, last, start, end = call.place.position
    assert first == last
    return linecache.getline(call.place.routine.code.co_filename, first)[start:end]


def test_calls_are_in_order_with_arguments_places_and_turns() -> None:
    calls = calls_of(Net(), X)
    names = [call.name for call in calls[""] if call.module == ""]
    assert names == ["layer", "act", "mul", *["leaky_relu"] * 3, "act", "mul", "add", "gelu", "add"]
    leaky, acts, products = calls["leaky_relu"], calls["act"], calls["mul"]
    assert [call.kwargs["negative_slope"] for call in leaky] == [0.1, 0.2, 0.3]
    assert {(call.args, call.function) for call in leaky} == {((Tensor,), F.leaky_relu)}
    assert {source_of(call) for call in leaky} == {"F.leaky_relu(x, negative_slope=rate)"}
    assert [call.turn for call in leaky] == [0, 1, 2]
    assert all(call.turns == leaky for call in leaky)
    assert [(call.function, call.turn) for call in acts] == [(None, 0)] * 2
    assert [source_of(call) for call in acts] == ["self.act(self.layer(x))", "self.act(x)"]
    assert not any(call.obstacle for call in calls[""])
    # A method of several calls is seen from each.
    lines, start = inspect.getsourcelines(Net.forward)
    callers = [call.place.caller.position[0] for call in products]  # type: ignore[union-attr]
    assert callers == [line for line, text in enumerate(lines, start) if "self.scaled(" in text]
    assert [call.turn for call in products] == [0, 0]


def repeated(m: Any, x: Tensor, times: int) -> Tensor:
    for _ in range(times):
        x = x + m.layer(x)
    return x


@pytest.mark.parametrize(("times", "is_free"), [((1, 1), True), ((2, 2), True), ((1, 2), False), ((0, 1), True)])
def test_runs_that_differ_are_an_obstacle(times: tuple[int, int], is_free: bool) -> None:
    block = Written(repeated, layer=nn.Linear(4, 4))
    model = Written(lambda m, x: m.block(m.block(x, times[0]).relu(), times[1]), block=block)
    additions = [call for call in calls_of(model, X)["add"] if call.module == "block"]
    assert len(additions) == sum(times)
    assert all((call.obstacle == "") is is_free for call in additions)


def shifted(x: Tensor) -> Tensor:
    """A function that is not a method."""
    return x + 1


@pytest.mark.parametrize("apply", [lambda x: shifted(x), lambda x: next(map(shifted, [x]))])
def test_functions_are_seen_from_the_method(apply: Callable[[Tensor], Tensor]) -> None:
    (added,) = calls_of(Written(lambda m, x: apply(m.layer(x)), layer=nn.Linear(4, 4)), X)["add"]
    assert added.place is not None
    routines = [step.routine.name for step in added.place.chain()]
    assert (routines[0], routines[-1]) == ("shifted", "forward")
