"""Branches that end in a learned matrix of the block itself, and routed experts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.edits import ZeroBranchEnds
from normless.errors import UnsupportedEditError


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
