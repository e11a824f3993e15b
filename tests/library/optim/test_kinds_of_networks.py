"""Which γ decays by default depends on the kind of network; temperatures decay only where they are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from written_networks import Written

import normless as nl
from normless.models import resnet_cifar
from normless.models.spec import build_model

RATES = {"lr": 0.1, "weight_decay": 0.01}
IMAGES = torch.randn(2, 3, 32, 32)


def rms_norm(width: int) -> nn.Module:
    return Written(
        lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * m.g, g=nn.Parameter(torch.ones(width))
    )


class Own(nn.Module):
    """A GPT with norms of its own, positions as a bare parameter and a tied embedding."""

    def __init__(self, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(30, width), nn.Parameter(torch.randn(8, width) * 0.02)
        parts = {
            "ln_1": lambda: rms_norm(width),
            "qkv": lambda: nn.Linear(width, 3 * width),
            "proj": lambda: nn.Linear(width, width),
            "ln_2": lambda: nn.LayerNorm(width),
            "fc": lambda: nn.Linear(width, 4 * width),
            "out": lambda: nn.Linear(4 * width, width),
        }
        self.h = nn.ModuleList(nn.ModuleDict({name: make() for name, make in parts.items()}) for _ in range(layers))
        self.ln_f, self.head = rms_norm(width), nn.Linear(width, 30, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe[: tokens.shape[1]]
        for block in self.h:
            assert isinstance(block, nn.ModuleDict)
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in block["qkv"](block["ln_1"](x)).chunk(3, -1))
            x = x + block["proj"](F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            x = x + block["out"](F.gelu(block["fc"](block["ln_2"](x))))
        return self.head(self.ln_f(x))


TOKENS = torch.randint(30, (2, 6))


def hybrid() -> nn.Module:
    """A convolution with a batch norm beside a feed-forward branch with a layer norm."""

    def forward(m: Written, x: Tensor) -> Tensor:
        x = m.stem(x)
        x = (x + m.bn(m.conv(x))).transpose(1, 2)
        return m.head((x + m.fc(m.ln(x))).mean(1))

    convolutions = {"stem": nn.Conv1d(3, 8, 3), "conv": nn.Conv1d(8, 8, 3, padding=1)}
    norms = {"bn": nn.BatchNorm1d(8), "ln": nn.LayerNorm(8)}
    return Written(forward, **convolutions, **norms, fc=nn.Linear(8, 8), head=nn.Linear(8, 2))


def plain() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(4))


# The network, its inputs, whether γ at branch ends decays, and a word of the reason.
KINDS: dict[str, tuple[Callable[[], nn.Module], Any, bool, str]] = {
    "resnet": (lambda: build_model("timm:test_resnet"), IMAGES, True, "batch norms"),
    "ghost": (lambda: nl.convert(resnet_cifar(8), "ghost_batch_norm(size=2)"), IMAGES, True, "batch norms"),
    "own GPT": (Own, TOKENS, False, "ln_1 is not a batch norm"),
    "encoder": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)),
        torch.randn(2, 5, 3),
        False,
        "1.norm1 is not a batch norm",
    ),
    "ViT": (lambda: build_model("timm:test_vit(img_size=32)"), IMAGES, False, "not a batch norm"),
    "group norm": (lambda: nl.convert(resnet_cifar(8), "group_norm(groups=4)"), IMAGES, False, "not a batch norm"),
    "hybrid": (hybrid, torch.randn(2, 3, 9), False, "ln is not a batch norm"),
    "no blocks": (plain, IMAGES, False, "no residual blocks"),
    "no norms": (lambda: nl.convert(resnet_cifar(8), "skipinit"), IMAGES, False, "no norm with a γ"),
}


def built(kind: str) -> nn.Module:
    make, inputs, *_ = KINDS[kind]
    model = make()
    if any(isinstance(one, nn.LazyLinear) for one in model.modules()):
        model(inputs)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_gamma_decays_in_residual_networks_with_batch_norms_and_nowhere_else(kind: str) -> None:
    _, inputs, expected, reason = KINDS[kind]
    model = built(kind)
    for arguments in ({}, {"policy": "guidelines"}):
        groups = nl.param_groups(model, inputs, **RATES, **arguments)
        decayed = {group["name"] for group in groups if group["weight_decay"]}
        assert decayed - {"weights"} == (
            {"gamma_last", "gamma_other"} & {g["name"] for g in groups} if expected else set()
        )
        assert expected == ("gamma_last" in decayed)
        assert reason in str(groups)
    forced = nl.param_groups(model, inputs, **RATES, policy="weights+last")
    assert all(group["weight_decay"] for group in forced if group["name"] == "gamma_last")
    assert "guidelines" not in str(forced)


def energy(outputs: Any, batch: Any) -> Tensor:
    leaves = [one for one in tree_leaves(outputs) if isinstance(one, Tensor)]
    return torch.stack([one.square().mean() for one in leaves]).sum()


QUICK = ("ghost", "own GPT", "no blocks", "no norms")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_diagnosis_asks_for_the_decays_that_the_default_makes(kind: str) -> None:
    _, inputs, expected, reason = KINDS[kind]
    model = built(kind)
    names = {id(one): name for name, one in model.named_parameters()}

    def advised(policy: str) -> list[nl.Finding]:
        groups = nl.param_groups(model, inputs, **RATES, policy=policy)
        optimizer = torch.optim.SGD(groups)
        diagnosis = nl.diagnose(model, (inputs, inputs), loss=energy, optimizer=optimizer, trial_steps=0)
        return [one for one in diagnosis.advice if one.kind.startswith("decayed")]

    groups = nl.param_groups(model, inputs, **RATES)
    assert advised("guidelines") == []
    left = {names[id(one)] for group in groups if not group["weight_decay"] for one in group["params"]}
    (finding,) = advised("all")
    assert {*finding.where} == left
    assert reason in finding.title
    by_hand = advised("weights+last")
    assert bool(by_hand) == (not expected and any(group["name"] == "gamma_last" for group in groups))


def clip() -> nn.Module:
    """Two towers whose unit vectors are compared, with a learned logarithm of the logits' scale."""
    return Written(
        lambda m, x, y: m.logit_scale.exp() * F.normalize(m.a(x), dim=-1) @ F.normalize(m.b(y), dim=-1).t(),
        a=nn.Linear(6, 4),
        b=nn.Linear(6, 4),
        logit_scale=nn.Parameter(torch.tensor(2.0)),
    )


def cosine() -> nn.Module:
    """A residual network that ends in a cosine classifier with a learned scale."""

    def forward(m: Written, x: Tensor) -> Tensor:
        h = m.stem(x)
        h = h + m.fc(F.relu(m.norm(h)))
        return m.scale * F.linear(F.normalize(h, dim=-1), F.normalize(m.prototypes, dim=-1))

    parameters = {"prototypes": nn.Parameter(torch.randn(3, 8)), "scale": nn.Parameter(torch.full((1,), 10.0))}
    return Written(forward, stem=nn.Linear(6, 8), norm=nn.BatchNorm1d(8), fc=nn.Linear(8, 8), **parameters)


def heads() -> nn.Module:
    """Attention with a learned temperature for each head, and one for the logits, by which they are divided."""

    def forward(m: Written, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in m.qkv(m.norm(x)).chunk(3, -1))
        weights = (q @ k.transpose(-2, -1) * m.heat).softmax(-1)
        x = x + m.proj((weights @ v).transpose(1, 2).flatten(2))
        return m.head(x.mean(1)) / m.divisor

    layers = {"qkv": nn.Linear(8, 24), "proj": nn.Linear(8, 8), "head": nn.Linear(8, 3), "norm": nn.LayerNorm(8)}
    return Written(forward, **layers, heat=nn.Parameter(torch.ones(2, 1, 1)), divisor=nn.Parameter(torch.ones(())))


TEMPERATURES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], set[str]]] = {
    "clip": (clip, (torch.randn(3, 6), torch.randn(3, 6)), {"logit_scale"}),
    "cosine": (cosine, (torch.randn(3, 6),), {"scale"}),
    "heads": (heads, (torch.randn(2, 5, 8),), {"heat", "divisor"}),
}


@pytest.mark.parametrize("name", TEMPERATURES)
def test_temperatures_decay_only_where_they_are_named(name: str) -> None:
    make, inputs, expected = TEMPERATURES[name]
    model = make()
    names = {id(one): key for key, one in model.named_parameters()}
    for policy in ("guidelines", "weights", "all", "all+temperatures"):
        groups = nl.param_groups(model, *inputs, **RATES, policy=policy)
        (group,) = [one for one in groups if one["name"] == "temperatures"]
        assert {names[id(one)] for one in group["params"]} == expected
        assert bool(group["weight_decay"]) == (policy == "all+temperatures")


def test_multipliers_of_branches_are_not_temperatures() -> None:
    """It ends in a sum of a branch with a learned factor."""
    headless = Written(lambda m, x: x + m.alpha * m.fc(x), fc=nn.Linear(4, 4), alpha=nn.Parameter(torch.ones(1)))
    groups = nl.param_groups(headless, torch.randn(2, 4), **RATES)
    assert [group["name"] for group in groups] == ["weights", "biases", "scalars"]
