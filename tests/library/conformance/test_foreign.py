"""Fixup on transformers of libraries, against the paper's template."""

from __future__ import annotations

import re

import pytest
import torch
import transformers as hf
from gallery import ROWS

import normless as nl
from normless.edits import RescaleBranches


@pytest.mark.parametrize("network", ["small timm ViT", "torch pre-norm encoder", "hf GPT-2", "hf BERT"])
def test_fixup_leaves_queries_and_keys_and_tied_tables_alone(network: str) -> None:
    model, (inputs, kwargs) = ROWS[network].network(), ROWS[network].example()
    net = nl.convert(model, "fixup", *inputs, **kwargs)
    factor = nl.residual_map(model, *inputs, **kwargs).depth ** -0.5
    after, checked = dict(net.named_parameters()), 0
    for name, one in model.named_parameters():
        if re.search(r"(qkv\.weight|in_proj_weight|c_attn\.weight)$", name):
            axis = 1 if "c_attn" in name else 0
            for index, (old, new) in enumerate(zip(one.chunk(3, axis), after[name].chunk(3, axis), strict=True)):
                torch.testing.assert_close(new, old * factor if index == 2 else old)
            checked += 1
        if name.endswith(("query.weight", "key.weight", "wte.weight")):
            assert torch.equal(after[name], one)
            checked += 1
    assert checked >= 2


def test_a_cross_attention_packs_keys_and_values_alone() -> None:
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 12}
    model = hf.GPT2LMHeadModel(hf.GPT2Config(add_cross_attention=True, bos_token_id=0, eos_token_id=1, **sizes))
    inputs = {"input_ids": torch.randint(2, 50, (4, 7)), "encoder_hidden_states": torch.randn(4, 3, 16)}
    inputs["use_cache"] = False
    net = nl.convert(model, nl.Scheme("rescaled", (RescaleBranches(),)), **inputs)
    old, new = (one.transformer.h[0].crossattention for one in (model, net))
    key, value = new.c_attn.weight.chunk(2, 1)
    assert torch.equal(key, old.c_attn.weight[:, :16])
    torch.testing.assert_close(value, old.c_attn.weight[:, 16:] * 3**-0.5)
    assert torch.equal(new.q_attn.weight, old.q_attn.weight)
