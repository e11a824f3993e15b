"""The block of a network however its forward code is written; the expectation is stated by hand."""

from __future__ import annotations

import functools
import logging
import operator
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
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
    "checkpointed": lambda net, x: x + checkpoint(net.branch, x, use_reentrant=False),
    "checkpointed_reentrant": lambda net, x: checkpoint(lambda y: y + net.branch(y), x, use_reentrant=True),
    "masked": lambda net, x: torch.where(x > -100, x + net.branch(x), x),
    "stack_and_sum": lambda net, x: torch.stack([x, net.branch(x)]).sum(0),
    "sum_of_list": lambda net, x: sum([x, net.branch(x)]),
    "reduced": lambda net, x: functools.reduce(operator.iadd, [net.branch(x), x]),
    "in_place": lambda net, x: operator.iadd(x, net.branch(x)),  # type: ignore[no-untyped-call]
    "subtracted": lambda net, x: x.sub(net.branch(x), alpha=-1),
    "lerp": lambda net, x: torch.lerp(x, net.branch(x), 0.5),
    "vmapped": lambda net, x: torch.vmap(lambda row: row + net.branch(row))(x),
    "vmapped_branch": lambda net, x: x + torch.vmap(net.branch)(x),
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
def sum_of_slices(net: Net, x: Tensor) -> Tensor:
    y = x.clone()
    y[:] += net.branch(x)
    return y


@case()
def assigned_slices(net: Net, x: Tensor) -> Tensor:
    y, both = torch.zeros_like(x), x + net.branch(x)
    y[:, :2] = both[:, :2]
    y[:, 2:] = both[:, 2:]
    return y


@case()
def out(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = torch.empty_like(x)
        torch.add(x, net.branch(x), out=y)
        return y


@case()
def out_of_the_branch(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = torch.empty(0)
        torch.mul(net.branch(x), 2, out=y)
        return x + y


@case()
def copied_into_a_buffer(net: Net, x: Tensor) -> Tensor:
    net.buffer = torch.zeros(3, 4)
    net.buffer.copy_(x)
    net.buffer.add_(net.branch(x))
    return net.buffer


@case()
def data(net: Net, x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y.data = (x + net.branch(x)).data
    return y


@case()
def data_of_the_branch(net: Net, x: Tensor) -> Tensor:
    y = net.branch(x)
    y.data.add_(x.data)
    return y


@case()
def autocast(net: Net, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x + net.branch(x)
    return y.float()


@case()
def no_grad(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        return x + net.branch(x)


@case()
def inference_mode(net: Net, x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x + net.branch(x)
    return y.clone()


@case(follows_values=True)
def decided_by_a_mean(net: Net, x: Tensor) -> Tensor:
    return x + net.branch(x) if x.mean() > -100 else x


@case(follows_values=True)
def loop_over_a_value(net: Net, x: Tensor) -> Tensor:
    for _ in range(int(x.square().sum()) * 0 + 1):
        x = x + net.branch(x)
    return x


@case(follows_values=True)
def selected_by_values(net: Net, x: Tensor) -> Tensor:
    chosen = x.sum(1) > -100
    y = x.clone()
    y[chosen] = x[chosen] + net.branch(x[chosen])
    return y


@case()
def logged(net: Net, x: Tensor) -> Tensor:
    net.kept = x.mean().item()
    logging.getLogger("test").debug("mean %f %s", x.mean().item(), f"{x.mean().item():.3f}")
    return x + net.branch(x)


@case()
def einops_like(net: Net, x: Tensor) -> Tensor:
    y = x.reshape(3, 2, 2).permute(2, 0, 1)
    z = net.branch(x).reshape(3, 2, 2).movedim(2, 0)
    return (y + z).permute(1, 2, 0).flatten(1)


@case()
def functional_call(net: Net, x: Tensor) -> Tensor:
    weights = {name: p * 1.0 for name, p in net.lin.named_parameters()}
    return x + torch.func.functional_call(net.lin, weights, net.norm(x))  # type: ignore[no-any-return]


@case()
def fourier(net: Net, x: Tensor) -> Tensor:
    spectrum = torch.fft.fft(net.branch(x))
    return x + torch.fft.ifft(spectrum * torch.exp(1j * torch.ones(4))).real  # type: ignore[no-any-return]


@case()
def complex_stream(net: Net, x: Tensor) -> Tensor:
    y = torch.complex(x, torch.zeros_like(x))
    return torch.view_as_real(y + torch.fft.fft(net.branch(y.real))).sum(-1)


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


@case(follows_values=True)
def numpy_of_the_branch(net: Net, x: Tensor) -> Tensor:
    return x + torch.from_numpy(net.branch(x).detach().numpy())


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


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "meta": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("mode", MODES)
def test_the_block_is_found_in_modes_of_the_caller(mode: str) -> None:
    with MODES[mode]():
        assert facts(nl.residual_map(Net(ROWS["plain"]), torch.randn(3, 4))) == [(["lin"], ["norm"], True)]


def hooked(net: Net) -> None:
    net.written = lambda net, x: net.branch(x)
    net.lin.register_forward_hook(lambda module, args, output: output + net.kept)
    net.norm.register_forward_pre_hook(lambda module, args: setattr(net, "kept", args[0]))


CHANGES: dict[str, Callable[[Net], Any]] = {
    "hooks that add": hooked,
    "weight_norm": lambda net: parametrizations.weight_norm(net.lin),
    "old weight_norm": lambda net: nn.utils.weight_norm(net.lin),
    "spectral_norm": lambda net: parametrizations.spectral_norm(net.lin),
    "old spectral_norm": lambda net: nn.utils.spectral_norm(net.lin),
    "orthogonal": lambda net: parametrizations.orthogonal(net.lin),
    "compiled": lambda net: setattr(net, "branch", torch.compile(net.branch, backend="eager")),
    "fx": lambda net: setattr(net, "lin", torch.fx.symbolic_trace(net.lin)),
    "bfloat16": lambda net: net.bfloat16(),
    "float64": lambda net: net.double(),
    "shared": lambda net: setattr(net, "alias", net.lin),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHANGES)
def test_the_block_of_a_changed_network_is_found(name: str) -> None:
    net = Net(ROWS["plain"])
    CHANGES[name](net)
    mapped = nl.residual_map(net, torch.randn(3, 4, dtype=net.stem.weight.dtype))
    assert facts(mapped) == [(["lin"], ["norm"], True)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda net: torch.compile(net, backend="eager")])
def test_the_block_of_a_wrapped_network_is_found(wrap: Callable[[nn.Module], nn.Module]) -> None:
    ((branch, norms, identity),) = facts(nl.residual_map(wrap(Net(ROWS["plain"])), torch.randn(3, 4)))
    assert [path.rpartition(".")[2] for path in (*branch, *norms)] == ["lin", "norm"]
    assert identity


@dataclass
class Output:
    values: Tensor
    others: dict[str, list[Tensor]]


def test_keyword_arguments_and_outputs_of_any_form() -> None:
    class Keywords(Net):
        def forward(self, *, given: dict[str, Tensor]) -> Any:  # type: ignore[override]
            return Output(y := super().forward(given["x"]), {"all": [y]})

    mapped = nl.residual_map(Keywords(ROWS["plain"]), given={"x": torch.randn(3, 4)})
    assert facts(mapped) == [(["lin"], ["norm"], True)]
    assert mapped.classifier == "head"


def energy_by_autograd(net: Net, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x + net.branch(x)).sum(), x, create_graph=True)[0]


def energy_by_func(net: Net, x: Tensor) -> Tensor:
    return torch.func.grad(lambda y: (y + net.branch(y)).sum())(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("written", [energy_by_autograd, energy_by_func])
def test_forces_are_followed_or_refused_with_the_line(written: Forward) -> None:
    with nullcontext() if written is energy_by_func else pytest.raises(nl.UnresolvedStructureError) as error:
        assert facts(nl.residual_map(Net(written), torch.randn(3, 4))) == [(["lin"], ["norm"], True)]
    assert error is None or all(word in str(error.value) for word in ("test_recorded_flows.py", "derivative"))


def test_recursion_and_shared_weights_count_each_run() -> None:
    def recursive(net: Net, x: Tensor, depth: int = 3) -> Tensor:
        return recursive(net, x + net.branch(x), depth - 1) if depth else x

    mapped = nl.residual_map(Net(recursive), torch.randn(3, 4))
    assert facts(mapped) == [(["lin"], ["norm"], True)] * 3


def pads(net: Net, x: Tensor) -> Tensor:
    lengths = (x[:, 0] > 100).sum(0, keepdim=True) + torch.tensor([2])
    sequence = net.branch(x)[None]
    packed = nn.utils.rnn.pack_padded_sequence(sequence, lengths, batch_first=True)
    output, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    return x[None, : output.shape[1]] + F.relu(output)


def test_packed_sequences_follow_lengths() -> None:
    mapped = nl.residual_map(Net(pads), torch.randn(3, 4))
    # The skip path is a slice of the activation.
    assert facts(mapped) == [(["lin"], ["norm"], False)]
    assert mapped.flow.follows_values


def test_lazy_layers_are_refused() -> None:
    with pytest.raises(nl.UnresolvedStructureError, match=r"lin\.weight .*Run the network once"):
        nl.residual_map(nn.Sequential(OrderedDict(lin=nn.LazyLinear(4))), torch.randn(3, 4))


NOT_ADDITIONS: dict[str, Forward] = {
    "index_put": lambda net, x: x.index_put((torch.arange(3),), net.branch(x), accumulate=True),
    "index_add": lambda net, x: x.index_add(0, torch.tensor([0, 1, 2]), net.branch(x)),
    "scatter_add": lambda net, x: x.clone().scatter_add_(0, torch.arange(3)[:, None].expand(3, 4), net.branch(x)),
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
