"""Tiny transformers with random weights: those of Hugging Face from their configurations, and torch's own encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn

SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
Built = tuple[nn.Module, dict[str, Any]]


def tokens(count: int = 7) -> torch.Tensor:
    return torch.randint(50, (2, count))


def bert() -> Built:
    return hf.BertModel(hf.BertConfig(vocab_size=50, **SIZES)), {"input_ids": tokens()}


def vit() -> Built:
    config = hf.ViTConfig(image_size=16, patch_size=8, **SIZES)
    return hf.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


def gpt2() -> Built:
    config = hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=3, n_head=2, n_positions=12)
    return hf.GPT2LMHeadModel(config), {"input_ids": tokens(), "use_cache": False}


def t5() -> Built:
    config = hf.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=3, num_heads=2)
    inputs = {"input_ids": tokens(), "decoder_input_ids": tokens(5), "use_cache": False}
    return hf.T5ForConditionalGeneration(config), inputs


def swin() -> Built:
    config = hf.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4, mlp_ratio=2.0
    )
    return hf.SwinForImageClassification(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def convnext() -> Built:
    config = hf.ConvNextConfig(hidden_sizes=[8, 12, 16, 20], depths=[1, 2, 1, 1])
    return hf.ConvNextForImageClassification(config), {"pixel_values": torch.randn(2, 3, 64, 64)}


def resnet() -> Built:
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32, 32], depths=[2, 1, 1])
    return hf.ResNetForImageClassification(config), {"pixel_values": torch.randn(2, 3, 64, 64)}


def encoder(*, norm_first: bool) -> Built:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return model, {"src": torch.randn(2, 7, 16)}


def decoder() -> Built:
    layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerDecoder(layer, 2), {"tgt": torch.randn(2, 7, 16), "memory": torch.randn(2, 5, 16)}


BUILDERS: dict[str, Callable[[], Built]] = {
    "bert": bert,
    "vit": vit,
    "gpt2": gpt2,
    "t5": t5,
    "swin": swin,
    "convnext": convnext,
    "resnet": resnet,
    "encoder post-norm": lambda: encoder(norm_first=False),
    "encoder pre-norm": lambda: encoder(norm_first=True),
    "decoder": decoder,
}
