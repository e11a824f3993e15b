"""Fixup on transformers of libraries, against the paper's template; lifted code takes other arguments."""

from __future__ import annotations

import re
from inspect import signature
from typing import Any

import pytest
import torch
import transformers as hf
from gallery import ROWS
from gallery.row import floating
from torch import Tensor, nn

import normless as nl
from normless.edits import RescaleBranches

FOREIGN = [
    *("hf BERT", "hf GPT-2", "hf T5", "hf ViT", "small timm ViT", "small timm Swin", "torch post-norm encoder"),
    *("torch pre-norm encoder", "our pre-norm transformer", "our post-norm transformer", "ResNet-18"),
]


def made(scheme: str, name: str) -> tuple[nn.Module, Any, dict[str, Any]]:
    """The network, its conversion, and inputs by name."""
    model, (inputs, kwargs) = ROWS[name].network(), ROWS[name].example()
    if inputs:
        names = [key for key in signature(model.forward).parameters if key not in ("args", "kwargs")]
        kwargs = dict(zip(names, inputs, strict=False))
    return model, nl.convert(model, scheme, **kwargs), kwargs


@pytest.mark.parametrize("network", FOREIGN)
def test_fixup_blocks_start_as_their_skip_paths(network: str) -> None:
    """With every branch at zero, no weight inside one has a gradient but the last, its bias and its multiplier."""
    model, net, inputs = made("fixup", network)
    found = nl.residual_map(net, **inputs)
    assert found.depth == nl.residual_map(model, **inputs).depth
    assert found.norms == {}
    for block in found.blocks:
        last = [layer for layer in block.branch_layers if layer.kind == "weight" and not layer.gating][-1]
        weight = max(
            (net.get_parameter(name) for name in last.parameters if name.endswith("weight")), key=Tensor.numel
        )
        assert not weight.any(), block.name
    torch.stack([part.square().mean() for part in floating(net(**inputs))]).mean().backward()
    inside = {name for block in found.blocks for layer in block.branch_layers for name in layer.parameters}
    last_layers = {
        [layer for layer in block.branch_layers if layer.kind == "weight" and not layer.gating][-1].path
        for block in found.blocks
    }
    for name in inside:
        one = dict(net.named_parameters()).get(name)
        if one is not None and name.rpartition(".")[0] not in last_layers and one.grad is not None:
            assert not one.grad.any(), name


@pytest.mark.parametrize("network", ["small timm ViT", "torch pre-norm encoder", "hf GPT-2", "hf BERT"])
def test_fixup_leaves_queries_and_keys_and_tied_tables_alone(network: str) -> None:
    model, net, inputs = made("fixup", network)
    factor = nl.residual_map(model, **inputs).depth ** -0.5
    before, after = dict(model.named_parameters()), dict(net.named_parameters())
    checked = 0
    for name, one in before.items():
        packed = re.search(r"(qkv\.weight|in_proj_weight|c_attn\.weight)$", name)
        if packed:
            axis = 1 if "c_attn" in name else 0
            for index, (old, new) in enumerate(zip(one.chunk(3, axis), after[name].chunk(3, axis), strict=True)):
                torch.testing.assert_close(new, old * factor if index == 2 else old)
            checked += 1
        if name.endswith(("query.weight", "key.weight", "wte.weight")):
            assert torch.equal(after[name], one)
            checked += 1
    assert checked >= 2
    assert all(part.isfinite().all() for part in floating(net(**inputs)))


def test_a_lifted_block_takes_other_keywords_than_it_was_converted_with() -> None:
    """GPT-2's blocks take what they pass on as keywords without a name, caches and masks among them."""
    model, net, inputs = made("sqrt2", "hf GPT-2")
    net.eval()
    expected = net(**inputs).logits
    places = torch.arange(1, 8).expand(4, 7)
    assert not torch.allclose(net(**inputs, position_ids=places).logits, expected)
    cached = net(inputs["input_ids"][:, :-1], use_cache=True)
    last = net(inputs["input_ids"][:, -1:], past_key_values=cached.past_key_values, use_cache=True)
    torch.testing.assert_close(last.logits[:, -1], expected[:, -1], atol=1e-5, rtol=1e-4)
    padded = torch.cat([inputs["input_ids"], torch.zeros(4, 2, dtype=torch.long)], 1)
    mask = torch.cat([torch.ones(4, 7), torch.zeros(4, 2)], 1).long()
    torch.testing.assert_close(net(padded, attention_mask=mask).logits[:, :7], expected, atol=1e-5, rtol=1e-4)
    assert nl.residual_map(net, **inputs).depth == nl.residual_map(model, **inputs).depth


def test_a_cross_attention_packs_keys_and_values_alone() -> None:
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 12}
    config = hf.GPT2Config(add_cross_attention=True, bos_token_id=0, eos_token_id=1, **sizes)
    model = hf.GPT2LMHeadModel(config)
    inputs = {
        "input_ids": torch.randint(2, 50, (4, 7)),
        "encoder_hidden_states": torch.randn(4, 3, 16),
        "use_cache": False,
    }
    net = nl.convert(model, nl.Scheme("rescaled", (RescaleBranches(),)), **inputs)
    old, new = (one.transformer.h[0].crossattention for one in (model, net))
    key, value = new.c_attn.weight.chunk(2, 1)
    assert torch.equal(key, old.c_attn.weight[:, :16])
    torch.testing.assert_close(value, old.c_attn.weight[:, 16:] * 3**-0.5)
    assert torch.equal(new.q_attn.weight, old.q_attn.weight)
