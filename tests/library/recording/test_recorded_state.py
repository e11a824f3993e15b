"""A network, its inputs and the process are as before every call, whether its pass ends, fails or is interrupted."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

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


@case(lambda net: [torch.ones(4), {"inner": torch.ones(2)}, np.array([torch.ones(3), ""], dtype=object)])
def written_values(net: Net, x: Tensor) -> None:
    with torch.no_grad():
        net.lin.weight.mul_(0.5)
        net.stem.weight.data = net.stem.weight.data * 0.5
        net.other.weight.data.add_(0.1)
        torch._foreach_mul_([net.lin.bias, net.other.bias], 0.9)
        net.norm.weight.copy_(x.detach().mean(0))
        net.buffer.add_(1)
        for kept in (net.kept[0], net.kept[1]["inner"], net.kept[2][0]):
            kept.mul_(0.9)
    net.kept[0] = torch.zeros(4)


@case()
def gradients(net: Net, x: Tensor) -> None:
    for parameter in net.lin.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.grad is None else parameter.grad.add_(1)


@case()
def required(net: Net, x: Tensor) -> None:
    x.requires_grad_()


ENDS = {"returned": None, "failed": RuntimeError("forward fails"), "interrupted": KeyboardInterrupt()}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", CASES)
def test_everything_is_as_before(name: str, end: str) -> None:
    net, x = Net(CASES[name].run, ENDS[end]), torch.randn(3, 4)
    net.kept = CASES[name].kept(net)
    before, others = frozen((net, x), {}), process()
    if end == "returned":
        assert nl.residual_map(net, x).depth == 1
    else:
        with pytest.raises(nl.errors.UnresolvedStructureError if end == "failed" else KeyboardInterrupt):
            nl.residual_map(net, x)
    assert frozen((net, x), {}) == before
    assert process() == others


CALLS: dict[str, Callable[[Net, Tensor], Any]] = {
    "probe": lambda net, x: nl.probe(net, (x, torch.tensor([0, 1, 2]))),
    "diagnose": lambda net, x: nl.diagnose(net, (x, torch.tensor([0, 1, 2])), trial_steps=2),
    "diagnose_trained": lambda net, x: nl.diagnose_trained(net, [(x, torch.tensor([0, 1, 2]))]),
    "mixes_examples": lambda net, x: nl.mixes_examples(net, x),
    "convert": lambda net, x: nl.convert(net, "dyt", x),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", CASES)
def test_everything_is_as_before_every_call(name: str, call: str) -> None:
    net, x = Net(CASES[name].run, None), torch.randn(3, 4)
    net.kept = CASES[name].kept(net)
    before, others = frozen((net, x), {}), process()
    with suppress(ValueError, RuntimeError):  # Forward code that writes may be refused.
        CALLS[call](net, x)
    assert frozen((net, x), {}) == before
    assert process() == others


def test_a_copy_starts_where_the_original_stands() -> None:
    net, x = Net(CASES["written_values"].run, None), torch.randn(3, 4)
    net.kept = CASES["written_values"].kept(net)
    made, before = nl.convert(net, "dyt", x).state_dict(), net.state_dict()
    for name in ("other.weight", "other.bias", "lin.bias", "buffer"):
        assert torch.equal(made[name], before[name]), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_watched_training_is_an_unwatched_one(name: str) -> None:
    if name in ("containers", "deleted", "in_place_input", "registered", "replaced", "modes"):
        pytest.skip("its forward pass runs once")

    def trained(*, watched: bool) -> Net:
        torch.manual_seed(0)
        net = Net(CASES[name].run, None)
        net.kept = CASES[name].kept(net)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        watch = nl.watch(net, interval=2) if watched else None
        for _ in range(6):
            optimizer.zero_grad()
            loss = net(torch.randn(3, 4)).square().mean()
            if watch is not None:
                watch.loss(loss)
            with suppress(RuntimeError):  # A weight of the graph is written.
                loss.backward()
            optimizer.step()
        if watch is not None:
            watch.close()
        return net

    one, other = trained(watched=False), trained(watched=True)
    for (key, value), (_, again) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        assert torch.equal(value, again), key
    values = ([tensor for tensor in tree_leaves(net.kept) if isinstance(tensor, Tensor)] for net in (one, other))
    assert all(map(torch.equal, *values))


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
