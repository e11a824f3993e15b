"""Removals from networks of transformers and of this package, from their configurations."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from removed import QUICK, relative
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl

TOKENS = torch.arange(30).reshape(3, 10) * 7 % 40
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 32}
HEADS: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 40, "use_cache": False}
LANGUAGE: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
PRE = {"attention": 2, "feed_forward": 2, "final": 1}
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, int], int]] = {
    "GPT2LMHeadModel": (
        {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 40, "n_positions": 16, "use_cache": False},
        PRE,
        0,
    ),
    "LlamaForCausalLM": (SMALL | HEADS, PRE, 0),
    "Qwen3ForCausalLM": (SMALL | HEADS, PRE | {"qk": 4}, 0),
    "Gemma2ForCausalLM": (SMALL | HEADS, {"attention": 4, "feed_forward": 4, "final": 1}, 0),
    "BertForSequenceClassification": (SMALL | {"vocab_size": 40}, {"other": 1, "attention": 2, "feed_forward": 2}, 4),
    "ViTForImageClassification": (SMALL | {"image_size": 8, "patch_size": 4, "num_channels": 1}, PRE, 0),
}


FURTHER = {"Qwen3ForCausalLM", "Gemma2ForCausalLM", "BertForSequenceClassification"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in FURTHER else ()) for name in NETWORKS]
)
def test_a_network_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    settings, places, affine = NETWORKS[name]
    kind: Any = getattr(transformers, name)
    torch.manual_seed(0)
    # LANGUAGE leaves out tokens that the small vocabularies do not have.
    model = kind(kind.config_class(**settings, **(LANGUAGE if name.endswith(("LM", "LMHeadModel")) else {})))
    given = {"pixel_values": torch.randn(3, 1, 8, 8)} if name.startswith("ViT") else {"input_ids": TOKENS}

    def loss(net: Any) -> Tensor:
        logits = net(**given).logits
        return F.cross_entropy(logits.flatten(0, -2), torch.arange(logits.numel() // logits.shape[-1]) % 2)

    model.eval()
    with torch.no_grad():
        expected = model(**given).logits
    names = list(model.state_dict())
    removal = nl.remove_norms(model, example_inputs=given, **QUICK)
    assert Counter(removal.places.values()) == places
    with torch.no_grad():
        assert relative(model(**given).logits, expected) < 1e-5
    assert list(model.state_dict()) == names
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    while not removal.done:
        optimizer.zero_grad()
        removal.loss(loss(model)).backward()
        optimizer.step()
        removal.step()
    model.eval()
    folded, report = nl.fold(removal.finish(), example_inputs=given)
    assert report.counts == {"folded": sum(places.values()) - affine, "affine": affine, "kept": 0}, report
    with torch.no_grad():
        assert relative(folded(**given).logits, model(**given).logits) < 1e-5


@pytest.mark.parametrize(("norm", "affine"), [("pre", 0), ("post", 5)])
def test_the_transformer_for_translation(norm: Any, affine: int) -> None:
    """Its embedding is that of source, target and head."""
    torch.manual_seed(0)
    model = nl.models.transformer(20, layers=1, width=8, heads=2, feed_forward=16, norm=norm, dropout=0.0)
    inputs = model.example_inputs()
    removal = nl.remove_norms(model, *inputs, **QUICK)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    while not removal.done:
        optimizer.zero_grad()
        removal.loss(model(*inputs).square().mean()).backward()
        optimizer.step()
        removal.step()
    model.eval()
    folded, report = nl.fold(removal.finish(), *inputs)
    assert report.counts["kept"] == 0
    assert report.counts["affine"] <= affine, report
    assert isinstance(folded, nn.Module)
    with torch.no_grad():
        assert relative(folded(*inputs), model(*inputs)) < 1e-5
