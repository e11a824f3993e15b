"""Small networks of torch, torchvision, timm and transformers, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from gallery.row import Row, adamw, add, each, entropy, row

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TOKENS, PHOTOS = "{'input_ids': randint(2, 50, (4, 7))}", "{'pixel_values': randn(4, 3, %d, %d)}"
UNCACHED = TOKENS.replace("}", ", 'use_cache': False}")
Named = dict[str, Any]


LAYERS = each("encoder.layers.{}: self_attn self_attn.out_proj", "encoder.layers.{}: linear1 linear2")
OF_ENCODER: Named = {"roles": "last: *", "loss": entropy, "optimizer": adamw}


@row("randint(50, (4, 7))", LAYERS, False, name="torch post-norm encoder", **OF_ENCODER)
@row("randint(50, (4, 7))", LAYERS, True, name="torch pre-norm encoder", **OF_ENCODER)
class Encoder(nn.Module):
    """torch's own encoder between an embedding and a classifier."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
        self.classifier = nn.Linear(16, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classifier(self.encoder(self.embedding(tokens)).mean(1))


def library(package: str, name: str, inputs: str, make: Callable[[Any], nn.Module], **stated: Any) -> None:
    """Enter a network that a package makes."""
    build = lambda: make(import_module(package))  # noqa: E731 - a row builds lazily
    add(Row(name, "libraries", build, inputs, needs=(package,), **stated))


def hugging_face(name: str, inputs: str, count: int, model: str, fitted: int = 0, **settings: Any) -> None:
    """Enter a network of transformers of a class and settings of its configuration, its blocks counted."""
    config = model.partition("For")[0].removesuffix("Model").removesuffix("LMHead") + "Config"
    make = lambda hf: getattr(hf, model)(getattr(hf, config)(**settings))  # noqa: E731
    library("transformers", name, inputs, make, count=(count, 0, fitted), optimizer=adamw, **STATED.get(name, {}))


SLOW: Named = {"size": "slow"}
STATED: dict[str, Named] = {
    "hf BERT": {"roles": "stem: bert.embeddings.LayerNorm; last: *"},
    "hf GPT-2": {
        "odd": "weights as of a convolution of one pixel; tied tables",
        "roles": "last: *.ln_[12]; other: *.ln_f",
    },
    "hf T5": {"odd": "an encoder and a decoder"},
    "hf ALBERT": {"odd": "one layer runs three times"} | SLOW,
    "hf LLaMA": {"odd": "gated feed-forward layers, fewer keys"} | SLOW,
    "hf Mixtral": {"odd": "routed experts"} | SLOW,
    **{f"hf {name}": SLOW for name in ("DistilBERT", "ViT", "Swin", "ConvNeXt", "ResNet")},
}
WORDS = SIZES | {"vocab_size": 50}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
hugging_face("hf BERT", TOKENS, 2 * 2, "BertForSequenceClassification", **WORDS)
sizes: Named = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
hugging_face("hf DistilBERT", TOKENS, 2 * 2, "DistilBertForSequenceClassification", vocab_size=50, **sizes)
hugging_face("hf ALBERT", TOKENS, 3 * 2, "AlbertModel", embedding_size=8, **WORDS | {"num_hidden_layers": 3})
sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12, "bos_token_id": 0, "eos_token_id": 1}
hugging_face("hf GPT-2", UNCACHED, 2 * 2, "GPT2LMHeadModel", vocab_size=50, **sizes)
hugging_face("hf LLaMA", UNCACHED, 2 * 2, "LlamaForCausalLM", num_key_value_heads=1, **WORDS)
hugging_face("hf Mixtral", UNCACHED, 2 * 2, "MixtralForCausalLM", **EXPERTS, **WORDS)
both = UNCACHED.replace("{", "{'decoder_input_ids': randint(2, 50, (4, 5)), ")
sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2}
hugging_face("hf T5", both, 2 * 2 + 3, "T5ForConditionalGeneration", vocab_size=50, **sizes)
hugging_face("hf ViT", PHOTOS % (16, 16), 2 * 2, "ViTForImageClassification", image_size=16, patch_size=8, **SIZES)
sizes = {"embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4, "mlp_ratio": 2.0}
hugging_face("hf Swin", PHOTOS % (32, 32), 3 * 2, "SwinForImageClassification", image_size=32, patch_size=4, **sizes)
sizes = {"hidden_sizes": [8, 12, 16, 20], "depths": [1, 2, 1, 1]}
hugging_face("hf ConvNeXt", PHOTOS % (64, 64), 1 + 2 + 1 + 1, "ConvNextForImageClassification", **sizes)
sizes = {"embedding_size": 8, "hidden_sizes": [16, 32, 32], "depths": [2, 1, 1]}
hugging_face("hf ResNet", PHOTOS % (64, 64), 2 + 1 + 1, "ResNetForImageClassification", fitted=3, **sizes)

STAGES = [
    f"layer{stage}.{block}: conv1 conv2{' | downsample.0' * (stage > 1 and block == 0)}"
    for stage in (1, 2, 3, 4)
    for block in (0, 1)
]
library(
    "torchvision",
    "ResNet-18",
    "randn(2, 3, 32, 32)",
    lambda torchvision: torchvision.models.resnet18(num_classes=10),
    blocks=tuple(STAGES),
    stem=("conv1",),
    heads=("fc",),
    roles="stem: bn1; last: *.bn2; down: *.downsample.1; other: *.bn1",
    loss=entropy,
    size="slow",
)


def of_timm(name: str, inputs: str, count: tuple[int, int, int], model: str, settings: Named, **stated: Any) -> None:
    """Enter a small network of timm."""
    make = lambda timm: timm.create_model(model, **settings)  # noqa: E731
    library("timm", name, inputs, make, count=count, loss=entropy, **stated)


sizes = {"num_classes": 10, "img_size": 32}
roles = "last: blocks.*; other: norm"
of_timm("small timm ViT", "randn(4, 3, 32, 32)", (12, 0, 0), "test_vit", sizes, roles=roles, optimizer=adamw)
sizes = sizes | {"embed_dim": 8, "depths": (2, 1), "num_heads": (2, 2), "window_size": 4, "drop_path_rate": 0.0}
swin = "swin_tiny_patch4_window7_224"
of_timm("small timm Swin", "randn(4, 3, 32, 32)", (6, 0, 0), swin, sizes | {"patch_size": 2}, optimizer=adamw, **SLOW)
sizes = {"depths": (2, 1), "channels": (32, 64), "skipinit": True, "num_classes": 5}
without = {"odd": "without norms"} | SLOW
of_timm("small timm NF-ResNet", "randn(2, 3, 32, 32)", (3, 0, 2), "nf_resnet26", sizes, **without)


@row(
    "{'tgt': randn(2, 7, 16), 'memory': randn(2, 5, 16)}",
    count=(2 * 3, 0, 0),
    name="torch decoder",
    roles="last: *",
    optimizer=adamw,
    size="slow",
)
def decoder() -> nn.Module:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), 2)
