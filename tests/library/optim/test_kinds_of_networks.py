"""Groups for kinds of networks and of optimizers: decay of γ, temperatures, Muon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import normless as nl
from normless.models import resnet_cifar
from normless.models.spec import build_model

RATES = {"lr": 0.1, "weight_decay": 0.01}
IMAGES = torch.randn(2, 3, 32, 32)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.g


class Own(nn.Module):
    """A GPT with norms of its own, positions as a bare parameter and a tied embedding."""

    def __init__(self, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(30, width), nn.Parameter(torch.randn(8, width) * 0.02)
        parts = {
            "ln_1": lambda: RMSNorm(width),
            "qkv": lambda: nn.Linear(width, 3 * width),
            "proj": lambda: nn.Linear(width, width),
            "ln_2": lambda: nn.LayerNorm(width),
            "fc": lambda: nn.Linear(width, 4 * width),
            "out": lambda: nn.Linear(4 * width, width),
        }
        self.h = nn.ModuleList(nn.ModuleDict({name: make() for name, make in parts.items()}) for _ in range(layers))
        self.ln_f, self.head = RMSNorm(width), nn.Linear(width, 30, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe[: tokens.shape[1]]
        for block in self.h:
            assert isinstance(block, nn.ModuleDict)
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in block["qkv"](block["ln_1"](x)).chunk(3, -1))
            x = x + block["proj"](F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            x = x + block["out"](F.gelu(block["fc"](block["ln_2"](x))))
        logits: Tensor = self.head(self.ln_f(x))
        return logits


TOKENS = torch.randint(30, (2, 6))


class Hybrid(nn.Module):
    """A convolution with a batch norm beside a feed-forward branch with a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.bn = nn.Conv1d(3, 8, 3), nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.ln, self.fc, self.head = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = (x + self.bn(self.conv(x))).transpose(1, 2)
        x = x + self.fc(self.ln(x))
        logits: Tensor = self.head(x.mean(1))
        return logits


def plain() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(4))


# The network, its inputs, whether γ at branch ends decays, and a word of the reason.
KINDS: dict[str, tuple[Callable[[], nn.Module], Any, bool, str]] = {
    "resnet": (lambda: build_model("timm:test_resnet"), IMAGES, True, "batch norms"),
    "ghost": (lambda: nl.convert(resnet_cifar(8), "ghost_batch_norm(size=2)"), IMAGES, True, "batch norms"),
    "mobilenet": (lambda: build_model("torchvision:mobilenet_v2"), IMAGES, True, "batch norms"),
    "own GPT": (Own, TOKENS, False, "ln_1 is not a batch norm"),
    "encoder": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)),
        torch.randn(2, 5, 3),
        False,
        "1.norm1 is not a batch norm",
    ),
    "ViT": (lambda: build_model("timm:test_vit"), torch.randn(2, 3, 160, 160), False, "not a batch norm"),
    "group norm": (lambda: nl.convert(resnet_cifar(8), "group_norm(groups=4)"), IMAGES, False, "not a batch norm"),
    "hybrid": (Hybrid, torch.randn(2, 3, 9), False, "ln is not a batch norm"),
    "no blocks": (plain, IMAGES, False, "no residual blocks"),
    "no norms": (lambda: nl.convert(resnet_cifar(8), "skipinit"), IMAGES, False, "no norm with a γ"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_gamma_decays_in_residual_networks_with_batch_norms_and_nowhere_else(kind: str) -> None:
    make, inputs, expected, reason = KINDS[kind]
    model = make()
    if any(isinstance(one, nn.LazyLinear) for one in model.modules()):
        model(inputs)
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_diagnosis_asks_for_the_decays_that_the_default_makes(kind: str) -> None:
    make, inputs, expected, reason = KINDS[kind]
    model = make()
    if any(isinstance(one, nn.LazyLinear) for one in model.modules()):
        model(inputs)
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


class Clip(nn.Module):
    """Two towers whose unit vectors are compared, with a learned logarithm of the logits' scale."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = F.normalize(self.a(x), dim=-1), F.normalize(self.b(y), dim=-1)
        return self.logit_scale.exp() * a @ b.t()


class Cosine(nn.Module):
    """A residual network that ends in a cosine classifier with a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.fc = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.prototypes, self.scale = nn.Parameter(torch.randn(3, 8)), nn.Parameter(torch.full((1,), 10.0))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = h + self.fc(F.relu(self.norm(h)))
        return self.scale * F.linear(F.normalize(h, dim=-1), F.normalize(self.prototypes, dim=-1))


class Heads(nn.Module):
    """Attention with a learned temperature for each head, and one for the logits, by which they are divided."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)
        self.norm = nn.LayerNorm(8)
        self.heat = nn.Parameter(torch.ones(2, 1, 1))
        self.divisor = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        weights = (q @ k.transpose(-2, -1) * self.heat).softmax(-1)
        x = x + self.proj((weights @ v).transpose(1, 2).flatten(2))
        logits: Tensor = self.head(x.mean(1)) / self.divisor
        return logits


TEMPERATURES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], set[str]]] = {
    "clip": (Clip, (torch.randn(3, 6), torch.randn(3, 6)), {"logit_scale"}),
    "cosine": (Cosine, (torch.randn(3, 6),), {"scale"}),
    "heads": (Heads, (torch.randn(2, 5, 8),), {"heat", "divisor"}),
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
    class Headless(nn.Module):
        """Ends in a sum of a branch with a learned factor."""

        def __init__(self) -> None:
            super().__init__()
            self.fc, self.alpha = nn.Linear(4, 4), nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.alpha * self.fc(x)

    groups = nl.param_groups(Headless(), torch.randn(2, 4), **RATES)
    assert [group["name"] for group in groups] == ["weights", "biases", "scalars"]


LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 30,
}
GPT2 = {
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "vocab_size": 30,
    "n_positions": 8,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm, self.hidden = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        logits: Tensor = self.last(h + self.hidden(self.norm(h)))
        return logits


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any, set[str], set[str]]] = {
    "own": (Own, TOKENS, {"wte.weight", "wpe"}, set()),
    "llama": (
        lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
        {"input_ids": TOKENS},
        {"model.embed_tokens.weight"},
        {"lm_head.weight"},
    ),
    "gpt2": (
        lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
        {"input_ids": TOKENS},
        {"transformer.wte.weight", "transformer.wpe.weight"},
        set(),
    ),
    "perceptron": (Perceptron, torch.randn(4, 6), {"first.weight"}, {"last.weight"}),
    "resnet": (lambda: build_model("timm:test_resnet"), torch.randn(2, 3, 32, 32), {"conv1.0.weight"}, {"fc.weight"}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_split(name: str) -> None:
    make, inputs, embedding, head = NETWORKS[name]
    model = make()
    groups = nl.param_groups(model, example_inputs=inputs, lr=1e-3, muon_lr=0.02, weight_decay=0.1)
    names = {id(one): key for key, one in model.named_parameters()}
    found = {group["name"]: {names[id(one)] for one in group["params"]} for group in groups}
    kernels = {key for key, one in model.named_parameters() if one.dim() > 2} - embedding
    matrices = {key for key, one in model.named_parameters() if one.dim() == 2}
    assert found.get("embedding", set()) == embedding
    assert found.get("head", set()) == head
    assert found.get("weights", set()) == kernels
    assert found.get("hidden", set()) == matrices - embedding - head
    assert {group["lr"] for group in groups.muon} <= {0.02}
    assert {group["lr"] for group in groups.rest} == {1e-3}
    assert {group["weight_decay"] for group in groups if group["name"] in ("hidden", "embedding", "head")} == {0.1}
    listed = [id(one) for part in (groups.muon, groups.rest) for group in part for one in group["params"]]
    assert sorted(listed) == sorted(names)
    if groups.muon:
        assert "hidden" in str(groups)


@pytest.mark.parametrize("make", [Own, lambda: nl.convert(Own(), "dyt(alpha=0.3)", TOKENS)], ids=["norms", "dyt"])
def test_muon_of_torch_trains_with_it(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    groups = nl.param_groups(model, TOKENS, lr=3e-3, muon_lr=0.02, weight_decay=0.01)
    optimizers = [torch.optim.Muon(groups.muon), torch.optim.AdamW(groups.rest)]
    losses = []
    for _ in range(25):
        loss = F.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.roll(-1, 1).flatten())
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_embeddings_are_left_out_of_decay_by_name() -> None:
    groups = nl.param_groups(Own(), TOKENS, lr=1e-3, weight_decay=0.1, policy={"weights": True, "embedding": False})
    assert {group["name"] for group in groups if group["weight_decay"]} == {"weights"}
    assert "hidden" not in {group["name"] for group in groups}
    (tables,) = [group for group in groups if group["name"] == "embedding"]
    assert len(tables["params"]) == 2
