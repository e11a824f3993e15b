"""Hidden matrices for Muon, everything else for another optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_kinds_of_networks import TOKENS, Own
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import normless as nl
from normless.models.spec import build_model

LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 30,
}
GPT2 = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 30, "n_positions": 8}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm, self.hidden = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h + self.hidden(self.norm(h)))


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


def test_muon_of_torch_trains_with_it() -> None:
    torch.manual_seed(0)
    model = nl.convert(Own(), "dyt(alpha=0.3)", TOKENS)
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
