"""Parameter groups of networks of torchvision, timm and transformers, against tables written by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import timm
import torch
import transformers
from torch import Tensor, nn

import normless as nl
from normless.optim import param_groups

TOKENS = {"input_ids": torch.arange(14).reshape(2, 7)}
SMALL = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


def images(side: int) -> Tensor:
    return torch.zeros(2, 3, side, side)


def albert() -> nn.Module:
    return transformers.AlbertModel(transformers.AlbertConfig(**SMALL, embedding_size=8, num_hidden_layers=3))


def gpt2() -> nn.Module:
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32, **ends)
    return transformers.GPT2LMHeadModel(config)


def t5() -> nn.Module:
    config = transformers.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    return transformers.T5ForConditionalGeneration(config)


def nf_resnet() -> nn.Module:
    return timm.create_model("nf_resnet26", depths=(2, 1), channels=(32, 64), skipinit=True, num_classes=5)


VIT = {"depth": 2, "embed_dim": 24, "num_heads": 2, "img_size": 32, "patch_size": 8, "num_classes": 5}

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "nf_resnet": (nf_resnet, (images(32),)),
    "vit": (partial(timm.create_model, "vit_tiny_patch16_224", init_values=1e-5, **VIT), images(32)),
    "beit": (partial(timm.create_model, "beit_base_patch16_224", **VIT), images(32)),
    "albert": (albert, TOKENS),
    "gpt2": (gpt2, TOKENS | {"use_cache": False}),
    "t5": (t5, TOKENS | {"decoder_input_ids": TOKENS["input_ids"], "use_cache": False}),
}

# The first pattern that matches the whole name of a parameter names its group.
TABLES: dict[str, dict[str, str]] = {
    "nf_resnet": {
        r".*bias": "biases",
        r".*\.skipinit_gain": "scalars",
        r".*conv\d?\.gain": "gains",
        r".*(conv\d?|head\.fc)\.weight": "weights",
    },
    "vit": {
        r".*bias": "biases",
        r"cls_token|pos_embed": "rest",
        r"blocks\.\d\.norm[12]\.weight": "gamma_last",
        r"norm\.weight": "gamma_other",
        r"blocks\.\d\.ls[12]\.gamma": "layer_scale",
        r"(patch_embed\.proj|.*attn\.qkv|.*attn\.proj|.*mlp\.fc[12]|head)\.weight": "weights",
    },
    # One bias of its qkv layer is joined from q_bias, zeros and v_bias.
    "beit": {
        r".*bias|.*relative_position_bias_table": "biases",
        r"cls_token": "rest",
        r"blocks\.\d\.norm[12]\.weight": "gamma_last",
        r"fc_norm\.weight": "gamma_other",
        r"blocks\.\d\.gamma_[12]": "layer_scale",
        r"(patch_embed\.proj|.*attn\.qkv|.*attn\.proj|.*mlp\.fc[12]|head)\.weight": "weights",
    },
    "albert": {
        r".*bias": "biases",
        r"embeddings\.LayerNorm\.weight": "gamma_stem",
        r"encoder\..*(attention\.LayerNorm|full_layer_layer_norm)\.weight": "gamma_last",
        r".*(embeddings|mapping_in|query|key|value|dense|ffn|ffn_output|pooler)\.weight": "weights",
    },
    "gpt2": {
        r".*bias": "biases",
        r"transformer\.h\.\d\.ln_[12]\.weight": "gamma_last",
        r"transformer\.ln_f\.weight": "gamma_other",
        r"transformer\.(wte|wpe|h\.\d\.(attn|mlp)\.c_(attn|proj|fc))\.weight": "weights",
    },
    # The last norm of a cross-attention's branch is the one in front of its queries.
    "t5": {
        r"(encoder|decoder)\.final_layer_norm\.weight": "gamma_other",
        r".*\.layer_norm\.weight": "gamma_last",
        r"(shared|.*\.(q|k|v|o|wi|wo|relative_attention_bias))\.weight": "weights",
    },
}


@cache
def network(name: str) -> tuple[nn.Module, nl.ResidualMap]:
    build, inputs = NETWORKS[name]
    torch.manual_seed(0)
    model = build().train()
    if isinstance(inputs, dict):
        return model, nl.residual_map(model, **inputs)
    return model, nl.residual_map(model, *(inputs if isinstance(inputs, tuple) else (inputs,)))


def grouped(model: nn.Module, **arguments: Any) -> dict[str, str]:
    """The group of every parameter by its first name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups(model, lr=0.1, weight_decay=0.01, **arguments)
    return {names[id(parameter)]: group["name"] for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_is_in_the_group_of_the_table(name: str) -> None:
    model, residual_map = network(name)
    table = {}
    for parameter, _ in model.named_parameters():
        matching = [group for pattern, group in TABLES[name].items() if re.fullmatch(pattern, parameter)]
        assert matching, parameter
        table[parameter] = matching[0]
    assert grouped(model, residual_map=residual_map) == table
    assert set(table.values()) == set(TABLES[name].values())


def test_a_tied_embedding_is_one_weight() -> None:
    for name, tied in [("gpt2", "lm_head"), ("t5", "encoder.embed_tokens")]:
        model, residual_map = network(name)
        embedding = model.get_input_embeddings().weight
        assert model.get_submodule(tied).weight is embedding
        groups = param_groups(model, lr=0.1, weight_decay=0.01, residual_map=residual_map)
        holding = [group["name"] for group in groups for parameter in group["params"] if parameter is embedding]
        assert holding == ["weights"]
