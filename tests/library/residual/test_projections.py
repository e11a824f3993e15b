"""Parallel layers, stems, interpolated sums, and weights without modules."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless import residual_map
from normless.edits import ZeroBranchEnds
from normless.errors import UnsupportedEditError

WIDTH = 8


class Parallel(nn.Module):
    """Convolutions side by side, as re-parameterizable networks train them."""

    def __init__(self, forward: Callable[[Parallel, Tensor], Tensor]) -> None:
        super().__init__()
        self.written = forward
        self.wide, self.point = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


PARALLEL: dict[str, Callable[[Parallel, Tensor], Tensor]] = {
    "repvgg": lambda net, x: torch.relu(net.norm1(net.wide(x)) + net.norm2(net.point(x)) + net.norm3(x)),
    "repvgg without identity": lambda net, x: torch.relu(net.norm1(net.wide(x)) + net.norm2(net.point(x))),
    "mobileone": lambda net, x: torch.relu(net.norm3(x) + net.norm1(net.wide(x))),
    "repvit": lambda net, x: net.norm3((net.norm1(net.wide(x)) + net.point(x)) + x),
}


@pytest.mark.parametrize("name", PARALLEL)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_parallel_convolutions_are_one_layer(name: str, training: bool) -> None:
    found = residual_map(Parallel(PARALLEL[name]).train(training), torch.randn(2, 4, 6, 6))
    assert found.blocks == ()


PROJECTING: dict[str, Callable[[Parallel, Tensor], Tensor]] = {
    "bare shortcut": lambda net, x: net.norm1(net.wide(x)) + net.point(x),
    "bare shortcut first": lambda net, x: torch.relu(net.point(x) + net.norm1(net.wide(x))),
    "bare shortcut in place": lambda net, x: net.norm1(net.wide(x)).add_(net.point(x)),
    "pooled shortcut": lambda net, x: (
        net.norm1(net.wide(x)) + net.norm2(net.point(nn.functional.max_pool2d(x, 3, 1, 1)))
    ),
}


@pytest.mark.parametrize("name", PROJECTING)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_shortcut_beside_one_normalized_convolution_is_the_skip_path(name: str, training: bool) -> None:
    """The wider kernel is the branch, also where its path has fewer operations, as in a cell of PNASNet."""
    found = residual_map(Parallel(PROJECTING[name]).train(training), torch.randn(2, 4, 6, 6))
    (block,) = found.blocks
    assert (block.branch, block.skip) == (("wide",), ("point",))
    assert found.unresolved == tuple(one for one in found.unresolved if one.path.startswith("norm"))


def test_a_projecting_block_between_blocks_with_identity_skip_paths() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x + self.b(torch.relu(self.norm(self.a(x))))
            return y

    model = nn.Sequential(nn.Conv2d(4, 4, 1), Block(), Parallel(PROJECTING["bare shortcut"]), Block())
    found = residual_map(model, torch.randn(2, 4, 6, 6))
    assert [block.name for block in found.blocks] == ["1", "2", "3"]
    assert found.norms["2.norm1"] == "last"


class Encoder(nn.Module):
    """A stem and two blocks in one forward pass; hidden layers go to the output as well, as in a WaveNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.hidden, self.back, self.out = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.norm(self.first(x)), torch.zeros(())
        for hidden, back, out in zip(self.hidden, self.back, self.out, strict=True):
            h = torch.relu(hidden(x))
            total = total + torch.tanh(out(h))
            x = x + back(h)
        return torch.cat([x, total])


def test_a_stem_in_the_module_of_the_blocks_is_the_stem() -> None:
    found = residual_map(nn.Sequential(nn.Linear(3, WIDTH), Encoder()), torch.randn(2, 3))
    assert [block.branch for block in found.blocks] == [("1.hidden.0", "1.back.0"), ("1.hidden.1", "1.back.1")]
    assert found.stem == ("0", "1.first")
    assert found.norms == {"1.norm": "stem"}
    assert {layer.path for layer in found.trunk_layers} >= {"1.out.0"}


Forward = Callable[["Layer", Tensor], Tensor]


class Layer(nn.Module):
    """A branch of two linear layers, whose output and sum are unit vectors, and a learned step."""

    def __init__(self, forward: Forward | None = None) -> None:
        super().__init__()
        self.written = forward
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.step = nn.Parameter(torch.full((8,), 0.3))

    def target(self, x: Tensor) -> Tensor:
        return F.normalize(self.down(F.silu(self.up(x))), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        assert self.written is not None
        return F.normalize(self.written(self, x), dim=-1)


def of_unit_skip(layer: Layer, x: Tensor) -> Tensor:
    """As the authors of nGPT write it."""
    a = F.normalize(x, dim=-1)
    return a + layer.step * (layer.target(x) - a)


WRITTEN: dict[str, Forward] = {
    "function": lambda layer, x: torch.lerp(x, layer.target(x), layer.step),
    "method": lambda layer, x: x.lerp(layer.target(x), layer.step),
    "keyword": lambda layer, x: torch.lerp(x, layer.target(x), weight=layer.step),
    "number": lambda layer, x: x.lerp(layer.target(x), 0.3),
    "scaled step": lambda layer, x: x.lerp(layer.target(x), layer.step * 2.0),
    "from the branch": lambda layer, x: layer.target(x).lerp(x, 1 - layer.step),
    "written out": lambda layer, x: x + layer.step * (layer.target(x) - x),
    "subtracted": lambda layer, x: x - layer.step * (x - layer.target(x)),
    "two products": lambda layer, x: (1 - layer.step) * x + layer.step * layer.target(x),
    "of a unit skip path": of_unit_skip,
}


class Named(nn.Module):
    """A network whose forward code is in a file, as that of every user is."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.layers = nn.ModuleList(KINDS[name]() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.head(x)
        return y


class ByFunction(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(torch.lerp(x, self.target(x), self.step), dim=-1)


class ByMethod(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.lerp(self.target(x), self.step), dim=-1)


class ByKeyword(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(torch.lerp(x, self.target(x), weight=self.step), dim=-1)


class FromTheBranch(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.target(x).lerp(x, 1 - self.step), dim=-1)


class WrittenOut(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x + self.step * (self.target(x) - x), dim=-1)


KINDS: dict[str, type[Layer]] = {
    "function": ByFunction,
    "method": ByMethod,
    "keyword": ByKeyword,
    "from the branch": FromTheBranch,
    "written out": WrittenOut,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_a_block_with_branch_and_skip_path(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Layer(WRITTEN[name]), Layer(WRITTEN[name]), nn.Linear(8, 3))
    found = nl.residual_map(model, torch.randn(4, 8))
    assert [block.branch for block in found.blocks] == [("1.up", "1.down"), ("2.up", "2.down")]
    assert all(block.interpolates and not block.skip and block.m == 2 for block in found.blocks)
    assert (found.stem, found.classifier) == (("0",), "3")
    assert found.unresolved == ()


@pytest.mark.parametrize("name", KINDS)
def test_at_a_multiplier_of_zero_it_is_the_skip_path_and_at_one_the_network(name: str) -> None:
    torch.manual_seed(0)
    model, x = Named(name), torch.randn(4, 8)
    closed = nl.convert(model, "skipinit(keep_scale=False)", x)
    expected = model.head(F.normalize(model.stem(x), dim=-1))
    torch.testing.assert_close(closed(x), expected, rtol=1e-5, atol=1e-6)
    opened = nl.convert(model, "skipinit(alpha=1, keep_scale=False)", x)
    for one in (opened, deepcopy(opened), pickle.loads(pickle.dumps(opened))):
        torch.testing.assert_close(one(x), model(x), rtol=1e-5, atol=1e-6)
    assert [block.branch for block in nl.residual_map(opened, x).blocks] == [
        (f"layers.{index}.up", f"layers.{index}.down") for index in range(2)
    ]
    torch.nn.functional.cross_entropy(closed(x), torch.tensor([0, 1, 2, 0])).backward()
    gradients = [one.grad for path, one in closed.named_parameters() if path.endswith("multiplier")]
    assert len(gradients) == 2
    assert all(one is not None and one.any() for one in gradients)


@pytest.mark.parametrize("name", WRITTEN)
def test_fixup_is_refused_since_a_last_layer_of_zeros_leaves_less_than_x(name: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Layer(WRITTEN[name]), Layer(WRITTEN[name]), nn.Linear(8, 3))
    with pytest.raises(UnsupportedEditError, match=r"fixup.*ZeroBranchEnds.*at 1: .*\(1 − c\)"):
        nl.convert(model, "fixup", torch.randn(4, 8))


def test_a_step_that_is_read_twice_is_no_gain_of_a_norm() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Layer(WRITTEN["two products"]), nn.Linear(8, 3))
    x = torch.randn(4, 8)
    assert nl.residual_map(model, x).norms == {}
    assert nl.convert(model, "none", x).get_parameter("1.step").shape == (8,)


class Bare(nn.Module):
    """x + f(x) whose last weight is a parameter of the block."""

    def __init__(self, apply: Callable[[Bare, Tensor], Tensor]) -> None:
        super().__init__()
        self.apply_last = apply
        self.norm, self.first = nn.LayerNorm(8), nn.Linear(8, 8)
        self.W, self.c = nn.Parameter(torch.randn(8, 8) / 3), nn.Parameter(torch.randn(8))
        self.out_weight = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.apply_last(self, torch.relu(self.first(self.norm(x))))


LAST: dict[str, Callable[[Bare, Tensor], Tensor]] = {
    "linear": lambda block, h: F.linear(h, block.W),
    "linear with a bias": lambda block, h: F.linear(h, block.W, block.c),
    "product": lambda block, h: h @ block.W,
    "einsum": lambda block, h: torch.einsum("bi,io->bo", h, block.W),
    "named as a weight": lambda block, h: h @ block.out_weight.mT,
}


@pytest.mark.parametrize("name", LAST)
def test_zeroed_ends_of_branches_and_refusals_in_sentences(name: str) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Bare(LAST[name]), nn.Linear(8, 3)), torch.randn(4, 8)
    net = nl.convert(model, nl.Scheme("zeroed", (ZeroBranchEnds(),)), x)
    torch.testing.assert_close(net(x), model[2](model[0](x)))
    skipinit = nl.convert(model, "skipinit(keep_scale=False)", x)
    torch.testing.assert_close(skipinit(x), model[2](model[0](x)))
    for scheme in ("fixup", "layer_scale", "nf_resnet", "lsuv"):
        with pytest.raises(UnsupportedEditError, match=rf"{scheme} is not possible.* at 1"):
            nl.convert(model, scheme, x)


class Router(nn.Module):
    """The two best of four experts; their shares are scaled in place, and a permutation is written by index."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(8), nn.Linear(8, 4)
        self.experts = nn.Parameter(torch.randn(4, 8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        shares, chosen = torch.topk(F.softmax(self.gate(h), -1), 2, dim=-1)
        shares /= shares.sum(-1, keepdim=True)
        order = chosen.argsort(-1)
        inverse = torch.empty_like(order)
        inverse.scatter_(-1, order, torch.arange(2).expand_as(order))
        shares = shares.gather(-1, order).gather(-1, inverse)
        y = torch.einsum("bi,eio->beo", torch.relu(h), self.experts)
        picked = y.gather(1, chosen[..., None].expand(-1, -1, 8))
        return x + (shares[..., None] * picked).sum(1)


def test_indices_and_results_of_their_own_are_no_writes_into_a_part() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Router(), Router(), nn.Linear(8, 3)), torch.randn(4, 8)
    mapped = nl.residual_map(model, x)
    assert (mapped.depth, mapped.unresolved) == (2, ())
    assert nl.convert(model, "none", x)(x).isfinite().all()


class Summed(nn.Module):
    """Two layers for each of three experts, all of them, with shares from a softmax of a router."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        shares = F.softmax(self.gate(x), -1)
        parts = [shares[..., at : at + 1] * expert(x) for at, expert in enumerate(self.experts)]
        return x + parts[0] + parts[1] + parts[2]


class Picked(nn.Module):
    """Rows of tokens picked for two experts of one parameter, with sigmoid shares, as transformers writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.first, self.second = (nn.Parameter(torch.randn(4, 8, 8) / 3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = torch.topk(self.gate(x).sigmoid(), 2, dim=-1)
        order = chosen.flatten().argsort()
        rows = x.repeat_interleave(2, 0)[order]
        groups = torch.histc(chosen.flatten()[order].float(), 4, 0, 3).cumsum(0, dtype=torch.int32)
        h = torch.relu(F.grouped_mm(rows, self.first, offs=groups))
        y = F.grouped_mm(h, self.second, offs=groups) * shares.flatten()[order].unsqueeze(-1)
        return x + y[order.argsort()].view(-1, 2, 8).sum(1)


@pytest.mark.parametrize(
    ("block", "weights"), [(Summed, {"1.experts.0.0", "1.experts.0.2"}), (Picked, {"1:first", "1:second"})]
)
def test_shares_of_experts_are_factors(block: type[nn.Module], weights: set[str]) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), block(), nn.Linear(8, 3)), torch.randn(6, 8)
    mapped = nl.residual_map(model, x)
    (found,) = mapped.blocks
    assert weights < {*found.branch}
    assert {*found.gates} & {*found.branch} == {"1.gate"}
    assert found.m == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Mixtral", "Qwen3Moe"])
def test_experts_of_transformers_are_weights(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    experts = {"num_local_experts": 4} if kind == "Mixtral" else {"num_experts": 4, "moe_intermediate_size": 16}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, num_experts_per_tok=2, **experts,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    mapped = nl.residual_map(model, input_ids=torch.arange(10)[None])
    feed_forward = mapped.blocks[1]
    named = {path.rpartition(".")[2] for path in feed_forward.branch}
    assert named == {"gate", "experts:gate_up_proj", "experts:down_proj"}
    assert feed_forward.m == 2
