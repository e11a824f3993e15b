"""The block of a network however its forward code is written; the expectation is stated by hand."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import normless as nl

Forward = Callable[["Net", Tensor], Any]


class Net(nn.Module):
    """stem → `written` → head, where `written` computes x + lin(norm(x)) in some way."""

    def __init__(self, written: Forward) -> None:
        super().__init__()
        self.stem, self.norm, self.lin, self.head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.written = written
        self.kept: Any = None
        self.register_buffer("buffer", torch.zeros(3, 4))

    buffer: Tensor

    def branch(self, x: Tensor) -> Tensor:
        return self.lin(self.norm(x))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.written(self, self.stem(x)))  # type: ignore[no-any-return]


# Further cases follow as functions.
ROWS: dict[str, Forward] = {
    "plain": lambda net, x: x + net.branch(x),
    "detached": lambda net, x: x.detach() + net.branch(x.detach()).detach(),
    "checkpointed_reentrant": lambda net, x: checkpoint(lambda y: y + net.branch(y), x, use_reentrant=True),
    "stack_and_sum": lambda net, x: torch.stack([x, net.branch(x)]).sum(0),
    "sum_of_list": lambda net, x: sum([x, net.branch(x)]),
    "in_place": lambda net, x: operator.iadd(x, net.branch(x)),  # type: ignore[no-untyped-call]
    "lerp": lambda net, x: torch.lerp(x, net.branch(x), 0.5),
    "vmapped": lambda net, x: torch.vmap(lambda row: row + net.branch(row))(x),
    "sparse": lambda net, x: x + torch.sparse.mm(torch.eye(3).to_sparse(), net.branch(x)),
    "forked": lambda net, x: x + torch.jit.wait(torch.jit.fork(net.branch, x)),  # type: ignore[no-untyped-call]
    "own_function": lambda net, x: Add.apply(x, net.branch(x)),
}
# Each with whether values decide what runs.
CASES = {name: (written, False) for name, written in ROWS.items()}


def case(follows_values: bool = False) -> Callable[[Forward], Forward]:
    def add(written: Forward) -> Forward:
        CASES[written.__name__] = written, follows_values
        return written

    return add


@case()
def written_through_a_view(net: Net, x: Tensor) -> Tensor:
    y = x.clone()
    y.view(-1).add_(net.branch(x).view(-1))
    return y


@case()
def out(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = torch.empty_like(x)
        torch.add(x, net.branch(x), out=y)
        return y


@case()
def inference_mode(net: Net, x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x + net.branch(x)
    return y.clone()


@case(follows_values=True)
def decided_by_a_mean(net: Net, x: Tensor) -> Tensor:
    return x + net.branch(x) if x.mean() > -100 else x


@case(follows_values=True)
def selected_by_values(net: Net, x: Tensor) -> Tensor:
    chosen = x.sum(1) > -100
    y = x.clone()
    y[chosen] = x[chosen] + net.branch(x[chosen])
    return y


@case()
def functional_call(net: Net, x: Tensor) -> Tensor:
    weights = {name: p * 1.0 for name, p in net.lin.named_parameters()}
    return x + torch.func.functional_call(net.lin, weights, net.norm(x))  # type: ignore[no-any-return]


class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], gradients[0]


class Named(Tensor):
    """A subclass without rules of its own."""


@case()
def subclass(net: Net, x: Tensor) -> Tensor:
    y = x.as_subclass(Named)
    return (y + net.branch(y)).as_subclass(Tensor)


@case()
def kept_in_a_list(net: Net, x: Tensor) -> Tensor:
    net.kept = []
    net.kept.append(x)
    net.kept.append(net.branch(net.kept[0]))
    return net.kept[0] + net.kept[1]  # type: ignore[no-any-return]


def facts(mapped: nl.ResidualMap) -> Any:
    blocks = mapped.to_dict()["blocks"]
    return [(block["branch"], block["norms"], block["identity_skip"]) for block in blocks]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", CASES)
def test_the_block_is_found(name: str, training: bool) -> None:
    written, follows_values = CASES[name]
    mapped = nl.residual_map(Net(written).train(training), torch.randn(3, 4))
    assert facts(mapped) == [(["lin"], ["norm"], True)]
    assert (mapped.to_dict()["stem"], mapped.classifier) == (["stem"], "head")
    assert not mapped.unresolved
    assert mapped.flow.follows_values == follows_values


def hooked(net: Net) -> None:
    net.written = lambda net, x: net.branch(x)
    net.lin.register_forward_hook(lambda module, args, output: output + net.kept)
    net.norm.register_forward_pre_hook(lambda module, args: setattr(net, "kept", args[0]))


CHANGES: dict[str, Callable[[Net], Any]] = {
    "hooks that add": hooked,
    "old weight_norm": lambda net: nn.utils.weight_norm(net.lin),
    "old spectral_norm": lambda net: nn.utils.spectral_norm(net.lin),
    "compiled": lambda net: setattr(net, "branch", torch.compile(net.branch, backend="eager")),
    "fx": lambda net: setattr(net, "lin", torch.fx.symbolic_trace(net.lin)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHANGES)
def test_the_block_of_a_changed_network_is_found(name: str) -> None:
    net = Net(ROWS["plain"])
    CHANGES[name](net)
    mapped = nl.residual_map(net, torch.randn(3, 4))
    assert facts(mapped) == [(["lin"], ["norm"], True)]


NOT_ADDITIONS: dict[str, Forward] = {
    "index_put": lambda net, x: x.index_put((torch.arange(3),), net.branch(x), accumulate=True),
    "_foreach_add": lambda net, x: torch._foreach_add([x], [net.branch(x)])[0],
    "addcmul": lambda net, x: torch.addcmul(x, net.branch(x), torch.ones(4), value=0.5),
}


@pytest.mark.parametrize("name", NOT_ADDITIONS)
def test_a_sum_that_is_no_addition_is_unresolved(name: str) -> None:
    mapped = nl.residual_map(Net(NOT_ADDITIONS[name]), torch.randn(3, 4))
    assert not mapped.blocks
    assert name in str(mapped.unresolved)


def written_parameter(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        net.norm.weight.data = 1 / x.std(0)
        net.norm.bias.copy_(x.mean(0))
        net.lin.weight.data.mul_(0.5)
    return x + net.branch(x)


def test_a_parameter_that_is_written_remains_one() -> None:
    mapped = nl.residual_map(net := Net(written_parameter), torch.randn(3, 4))
    plainly = nl.residual_map(Net(ROWS["plain"]), torch.randn(3, 4))
    assert [layer.parameters for layer in mapped.layers()] == [layer.parameters for layer in plainly.layers()]
    assert facts(mapped) == [(["lin"], ["norm"], True)]
    assert torch.equal(net.norm.weight, torch.ones(4))
