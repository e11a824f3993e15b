"""Normalizations that define an output, or compare queries and keys, are not norms of the trunk; heads and logits."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.last = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(F.relu(self.first(self.norm(x))))


class Trunk(nn.Sequential):
    def __init__(self, width: int = 16, outputs: int = 8, inputs: int = 6) -> None:
        blocks = [Block(width) for _ in range(3)]
        super().__init__(nn.Linear(inputs, width), *blocks, nn.LayerNorm(width), nn.Linear(width, outputs))


class Own(nn.Module):
    """A trunk, a parameter for each use, and an end that a test gives."""

    def __init__(self, end: Callable[[Own, Tensor], Tensor]) -> None:
        super().__init__()
        self.end, self.trunk = end, Trunk()
        self.scale = nn.Parameter(torch.tensor(5.0))
        self.log_scale = nn.Parameter(torch.tensor(1.5))
        self.prototypes = nn.Parameter(torch.randn(10, 8))
        self.gamma = nn.Parameter(torch.ones(8))
        self.classes = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self, self.trunk(x))


def by_hand(h: Tensor) -> Tensor:
    return h / h.pow(2).sum(-1, keepdim=True).sqrt().clamp_min(1e-6)


COSINES: dict[str, tuple[str, Callable[[Own, Tensor], Tensor], float]] = {
    "cosine classifier": ("scale", lambda m, h: m.scale * F.normalize(h) @ F.normalize(m.prototypes).t(), 5.0),
    "its weight by linear": ("scale", lambda m, h: F.linear(m.scale * by_hand(h), F.normalize(m.prototypes)), 5.0),
    "an exponential": ("log_scale", lambda m, h: m.log_scale.exp() * F.normalize(h) @ F.normalize(h).t(), 4.5),
    "by einsum": ("scale", lambda m, h: torch.einsum("nd,kd->nk", by_hand(h) * m.scale, by_hand(m.prototypes)), 5.0),
    "softplus": ("scale", lambda m, h: F.normalize(h) * F.softplus(m.scale) @ F.normalize(h[:2]).t(), 5.1),
    "an embedding": ("scale", lambda m, h: m.scale * F.normalize(h, dim=-1), 5.0),
}


@pytest.mark.parametrize(("kind", "scheme"), [*zip(COSINES, ["none", "fixup", "dyt"] * 2, strict=True)])
def test_a_learned_factor_of_unit_vectors_stays(kind: str, scheme: str) -> None:
    torch.manual_seed(0)
    name, end, bound = COSINES[kind]
    model, x = Own(end), torch.randn(4, 6)
    found = nl.residual_map(model, x)
    assert any(name in path and "output" in reason for path, reason in found.directions.items())
    assert name in str(found)
    converted = nl.convert(model, scheme, x)
    assert torch.equal(converted.get_parameter(name), model.get_parameter(name))
    outputs = converted(x).detach()
    assert outputs.abs().max() <= bound
    if kind == "an embedding":
        assert torch.allclose(outputs.norm(dim=-1), torch.tensor(5.0))
    assert any(change.path.endswith(name) and "stays" in change.what for change in nl.plan(model, scheme, x))


TRUNKS: dict[str, Callable[[Own, Tensor], Tensor]] = {
    "RMS norm before the head": lambda m, h: m.classes(F.normalize(h, dim=-1) * m.gamma * 8**0.5),
    "a scalar before the head": lambda m, h: m.classes(m.scale * F.normalize(h, dim=-1)),
    "no gain before the head": lambda m, h: m.classes(h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)),
    "tied to a table": lambda m, h: (by_hand(h) * m.gamma * 8**0.5) @ m.prototypes.t(),
    "a vector at the output": lambda m, h: F.normalize(h, dim=-1) * m.gamma,
}


@pytest.mark.parametrize("kind", TRUNKS)
def test_a_norm_that_weights_or_a_vector_follow_is_one_of_the_trunk(kind: str) -> None:
    found = nl.residual_map(Own(TRUNKS[kind]), torch.randn(4, 6))
    assert not found.directions
    written = set(found.norms) - {f"trunk.{number}.norm" for number in (1, 2, 3)} - {"trunk.4"}
    assert [found.norms[path] for path in written] == ["other"]


class Attention(nn.Module):
    def __init__(self, normed: Callable[[Attention, Tensor], Tensor], logits: str = "softmax") -> None:
        super().__init__()
        self.normed, self.logits = normed, logits
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.layer_norm, self.rms_norm = nn.LayerNorm(8), nn.RMSNorm(8)
        self.tau = nn.Parameter(torch.full((2, 1, 1), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        q, k = self.normed(self, q), self.normed(self, k)
        if self.logits == "softmax":
            y = (q @ k.mT * 8**-0.5).softmax(-1) @ v
        elif self.logits == "einsum":
            y = torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v)
        else:
            turned = [part * 0.6 + torch.cat([-part[..., 4:], part[..., :4]], -1) * 0.8 for part in (q, k)]
            y = F.scaled_dot_product_attention(*turned, v)
        return x + self.out(y.transpose(1, 2).flatten(-2))


NORMED: dict[str, Callable[[Attention, Tensor], Tensor]] = {
    "layer_norm": lambda m, q: m.layer_norm(q),
    "rms_norm": lambda m, q: m.rms_norm(q),
    "tau": lambda m, q: F.normalize(q, dim=-1) * m.tau,
}


@pytest.mark.parametrize(
    ("name", "logits", "scheme"),
    [
        ("layer_norm", "softmax", "fixup"), ("layer_norm", "einsum", "dyt"), ("rms_norm", "softmax", "dyt"),
        ("rms_norm", "fused after a rotation", "none"), ("tau", "einsum", "skipinit"),
        ("tau", "fused after a rotation", "fixup"),
    ],
)  # fmt: skip
def test_norms_of_queries_and_keys_stay_unless_asked(name: str, logits: str, scheme: str) -> None:
    torch.manual_seed(0)
    blocks = (Attention(NORMED[name], logits), Block(16), Attention(NORMED[name], logits))
    model = nn.Sequential(nn.Linear(6, 16), *blocks, nn.LayerNorm(16), nn.Linear(16, 4))
    x = torch.randn(2, 5, 6)
    found = nl.residual_map(model, x)
    assert len(found.blocks) == 3
    assert found.directions
    assert all("queries" in reason for reason in found.directions.values())
    assert set(found.norms) == {"1.norm", "2.norm", "3.norm", "4"}
    converted = nl.convert(model, scheme, x)
    kept = {key for key in model.state_dict() if name in key}
    assert kept <= set(converted.state_dict())
    if scheme != "dyt":
        assert not any("1.norm." in key for key in converted.state_dict())


def test_all_norms_go_where_that_is_asked() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), Attention(NORMED["rms_norm"]), Block(16), nn.Linear(16, 4))
    converted = nl.convert(model, "none(norms=all)", torch.randn(2, 5, 6))
    assert not any(isinstance(module, nn.RMSNorm) for module in converted[1].rms_norm.modules())
    assert not any(key.startswith(("1.rms_norm.", "1.norm.")) for key in converted.state_dict())
    with pytest.raises(ValueError, match="trunk or all"):
        nl.scheme("none(norms=some)")


class TwoHeads(nn.Module):
    """A trunk with ends by name, each a linear layer that a function joins with the others."""

    def __init__(self, join: Callable[..., object], count: int = 2) -> None:
        super().__init__()
        self.trunk, self.join = Trunk(outputs=16), join
        self.heads = nn.ModuleList(nn.Linear(16, 5) for _ in range(count))

    def forward(self, x: Tensor) -> object:
        h = self.trunk(x)
        return self.join(*(head(h) for head in self.heads))


HEADS: dict[str, tuple[int, Callable[..., object]]] = {
    "two outputs": (2, lambda a, b: {"boxes": a, "classes": b}),
    "a product": (2, lambda a, b: a * b),
    "a ratio": (2, lambda a, b: a / (b + 1)),
    "unit vectors": (1, lambda a: F.normalize(a, dim=-1)),
    "squares": (1, lambda a: a.square().sum(-1)),
    "a length": (1, lambda a: a.norm(dim=-1)),
    "distances": (1, lambda a: torch.cdist(a, a)),
    "a Gram matrix": (1, lambda a: a @ a.t()),
}


@pytest.mark.parametrize("kind", HEADS)
def test_fixup_leaves_heads_that_zeros_would_end(kind: str) -> None:
    """Every parameter that had a gradient gets one within a few steps of SGD."""
    torch.manual_seed(0)
    count, join = HEADS[kind]
    model, x = TwoHeads(join, count), torch.randn(6, 6)
    found = nl.residual_map(model, x)
    assert {head.path for head in found.heads} == {f"heads.{number}" for number in range(count)}
    changes = [change for change in nl.plan(model, "fixup", x) if change.path.startswith("heads.")]
    assert any("stays" in change.what for change in changes)
    converted = nl.convert(model, "fixup", x)
    assert converted.heads[0].weight.any()
    optimizer, moved = torch.optim.SGD(converted.parameters(), lr=1e-3), set[str]()
    for _ in range(5):
        optimizer.zero_grad()
        outputs = converted(x)
        parts = outputs.values() if isinstance(outputs, dict) else [outputs]
        sum((part - 0.3).square().sum() for part in parts).backward()
        for name, parameter in converted.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), name
            moved |= {name} if parameter.grad is not None and parameter.grad.any() else set()
        optimizer.step()
    assert {name for name, _ in converted.named_parameters() if "weight" in name} <= moved


@pytest.mark.parametrize("join", [lambda a: a, lambda a: a.log_softmax(-1), lambda a: (a.sigmoid() / 2).mean(0)])
def test_one_head_of_logits_starts_at_zero(join: Callable[..., object]) -> None:
    model, x = TwoHeads(join, 1), torch.randn(6, 6)
    found = nl.residual_map(model, x)
    assert found.classifier == "heads.0"
    assert [head.obstacle for head in found.heads] == [""]
    assert not nl.convert(model, "fixup", x).heads[0].weight.any()


def test_an_image_is_not_logits() -> None:
    def generator(m: Written, x: Tensor) -> Tensor:
        x = m.stem(x)
        for block in m.blocks:
            x = x + block(x)
        return torch.tanh(m.last(x))

    layers = (nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1))
    stem, last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
    blocks = nn.ModuleList(deepcopy(nn.Sequential(*layers)) for _ in range(2))
    model, x = Written(generator, stem=stem, last=last, blocks=blocks), torch.randn(2, 3, 6, 6)
    assert "image" in nl.residual_map(model, x).heads[0].obstacle
    assert nl.convert(model, "fixup", x)(x).any()


class CosineLinear(nn.Linear):
    """A linear layer that is a cosine classifier inside."""

    def forward(self, x: Tensor) -> Tensor:
        return 5 * F.linear(F.normalize(x), F.normalize(self.weight))


def test_a_weight_that_its_own_module_normalizes_never_starts_at_zero() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Trunk(), CosineLinear(8, 4, bias=False)), torch.randn(4, 6)
    (head,) = nl.residual_map(model, x).heads
    assert (head.path, "divided by its own norm" in head.obstacle) == ("1", True)
    assert torch.equal(nl.convert(model, "fixup", x)[1].weight, model[1].weight)
