"""A network, its inputs and the process are as before a map, whether its pass ends, fails or is interrupted."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normless as nl


def frozen(value: Any, seen: dict[int, int]) -> Any:
    """What `value` is and holds, with the identities of its mutable parts, in a form that compares by ==."""
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, Tensor | nn.Module | list | dict | set | deque) or hasattr(value, "__dict__"):
        seen[id(value)] = len(seen)
    match value:
        case Tensor():
            facts = id(value), type(value), value.data_ptr(), value.dtype, tuple(value.shape), value.stride()
            values = value.detach().tolist(), value.requires_grad, value.is_leaf
            return *facts, *values, frozen(value.grad if value.is_leaf else None, seen)
        case random.Random():
            return id(value), value.getstate()
        case np.random.Generator():
            return id(value), str(value.bit_generator.state)
        case torch.Generator():
            return id(value), value.get_state().tolist()
        case dict():
            return id(value), type(value), [(frozen(k, seen), frozen(v, seen)) for k, v in value.items()]
        case list() | deque():
            return id(value), type(value), [frozen(element, seen) for element in value]
        case tuple():
            return type(value), [frozen(element, seen) for element in value]
        case set():
            return id(value), sorted(value)
        case type():
            return value
    if isinstance(value, nn.Module) or (hasattr(value, "__dict__") and not callable(value)):
        return id(value), type(value), frozen(vars(value), seen)
    return value


def process() -> Any:
    """The random states and modes of the process."""
    generators = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002
    modes = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
    return *generators, *modes


Forward = Callable[["Net", Tensor], Any]


class Net(nn.Module):
    """One residual block; `before` runs first in forward, with what it writes to, and `error` last."""

    def __init__(self, before: Forward, error: BaseException | None) -> None:
        super().__init__()
        self.stem, self.norm, self.lin = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        self.other, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("buffer", torch.zeros(4))
        self.kept: Any = None
        self.run, self.error = before, error

    buffer: Tensor

    def forward(self, x: Tensor) -> Any:
        self.run(self, x)
        y = self.stem(x)
        y = y + self.lin(self.norm(y))
        if self.error is not None:
            raise self.error
        return y


class Case(NamedTuple):
    """What a forward pass writes, and what the network keeps of it beforehand."""

    run: Forward
    kept: Callable[[Net], Any]


CASES: dict[str, Case] = {}


def case(kept: Callable[[Net], Any] = lambda net: None) -> Callable[[Forward], Forward]:
    def add(run: Forward) -> Forward:
        CASES[run.__name__] = Case(run, kept)
        return run

    return add


@case()
def replaced(net: Net, x: Tensor) -> None:
    net.buffer = torch.ones(3)
    net.lin.weight = nn.Parameter(torch.ones(4, 4))
    net.other = nn.Linear(4, 4)
    net.kept = 3
    vars(net)["another"] = [1]


@case(lambda net: 1)
def deleted(net: Net, x: Tensor) -> None:
    del net.buffer, net.other, net.kept
    net.lin.register_parameter("bias", None)


@case()
def registered(net: Net, x: Tensor) -> None:
    net.register_buffer("counts", torch.zeros(1))
    net.add_module("late", nn.Linear(2, 2))
    net.lin.register_forward_hook(lambda module, args, output: output * 2)
    net.register_parameter("scale", nn.Parameter(torch.ones(1)))


@case(lambda net: [1, [2, {"a": deque([1], maxlen=3), "b": defaultdict(list)}], {4}, OrderedDict(z=1, y=[2])])
def containers(net: Net, x: Tensor) -> None:
    kept = net.kept
    kept[1][1]["a"].extend([5, 6, 7])
    kept[1][1]["b"]["new"].append(x)
    kept[2].add(9)
    kept[3].move_to_end("z")
    kept[3]["y"].clear()
    kept.reverse()


@case()
def backward(net: Net, x: Tensor) -> None:
    with torch.enable_grad():
        net.other(x).sum().backward()
        net.bn(x).sum().backward()


@case()
def modes(net: Net, x: Tensor) -> None:
    net.bn.eval()
    net.lin.training = False
    net.norm.eps = 0.1
    net.requires_grad_(False)
    net.buffer.requires_grad_()


@case(lambda net: (random.Random(1), np.random.default_rng(1), torch.Generator().manual_seed(1)))
def generators(net: Net, x: Tensor) -> None:
    python, numpy, own = net.kept
    python.random(), numpy.random(), torch.rand(3, generator=own)
    random.random(), np.random.rand(), torch.rand(2)  # noqa: NPY002
    nn.functional.dropout(x)
    torch.manual_seed(4)


@case()
def in_place_input(net: Net, x: Tensor) -> None:
    x.mul_(2)
    x[0] = 4
    x.view(-1)[3:5].zero_()
    x.data = torch.cat([x, x])


ENDS = {"returned": None, "failed": RuntimeError("forward fails"), "interrupted": KeyboardInterrupt()}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", CASES)
def test_everything_is_as_before(name: str, end: str) -> None:
    net, x = Net(CASES[name].run, ENDS[end]), torch.randn(3, 4)
    net.kept = CASES[name].kept(net)
    before, others = frozen((net, x), {}), process()
    # A derivative is refused, as the pass has no gradients.
    if end == "returned" and name != "backward":
        assert nl.residual_map(net, x).depth == 1
    else:
        refused = end == "failed" or name == "backward"
        with pytest.raises(nl.errors.UnresolvedStructureError if refused else KeyboardInterrupt):
            nl.residual_map(net, x)
    assert frozen((net, x), {}) == before
    assert process() == others


def nothing(net: Net, x: Tensor) -> None: ...


def test_containers_of_inputs_are_as_before() -> None:
    class Pops(Net):
        def forward(self, x: Any) -> Any:
            x["seen"] = 1
            y = x.pop("list").pop()
            return super().forward(y.relu_())

    given = {"list": [torch.randn(3, 4)], "b": 2}
    net = Pops(nothing, None)
    before = frozen(given, {})
    nl.residual_map(net, given)
    assert frozen(given, {}) == before
