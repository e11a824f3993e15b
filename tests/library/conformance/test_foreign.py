"""Fixup on transformers of libraries, against the paper's template."""

from __future__ import annotations

import re

import pytest
import torch
from gallery import ROWS

import normless as nl


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
