"""Small networks of torch, torchvision, timm and transformers, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from gallery.row import adamw, entropy, row

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TOKENS, PHOTOS = "{'input_ids': randint(2, 50, (4, 7))}", "{'pixel_values': randn(4, 3, %d, %d)}"
UNCACHED = TOKENS.replace("}", ", 'use_cache': False}")
Named = dict[str, Any]


LAYERS = [
    f"encoder.layers.{number}: {layers}"
    for number in range(2)
    for layers in ("self_attn self_attn.out_proj", "linear1 linear2")
]
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
        return self.classifier(self.encoder(self.embedding(tokens)).mean(1))  # type: ignore[no-any-return]


def hugging_face(name: str, inputs: str, count: int, **stated: Any) -> Callable[[Any], Any]:
    """Enter a network of transformers, its blocks counted."""
    fitted = stated.pop("fitted", 0)
    return row(inputs, name=name, count=(count, 0, fitted), optimizer=adamw, needs=("transformers",), **stated)


@hugging_face("hf BERT", TOKENS, 2 * 2, roles="stem: bert.embeddings.LayerNorm; last: *")
def bert() -> nn.Module:
    import transformers as hf

    return hf.BertForSequenceClassification(hf.BertConfig(vocab_size=50, **SIZES))


@hugging_face("hf DistilBERT", TOKENS, 2 * 2, size="slow")
def distilbert() -> nn.Module:
    import transformers as hf

    config = hf.DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
    return hf.DistilBertForSequenceClassification(config)


@hugging_face("hf ALBERT", TOKENS, 3 * 2, size="slow", odd="one layer runs three times")
def albert() -> nn.Module:
    import transformers as hf

    return hf.AlbertModel(hf.AlbertConfig(vocab_size=50, embedding_size=8, **SIZES | {"num_hidden_layers": 3}))


@hugging_face(
    "hf GPT-2",
    UNCACHED,
    2 * 2,
    odd="weights as of a convolution of one pixel; tied tables",
    roles="last: *.ln_[12]; other: *.ln_f",
)
def gpt2() -> nn.Module:
    import transformers as hf

    ends = {"bos_token_id": 0, "eos_token_id": 1}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=12, **ends))


@hugging_face("hf LLaMA", UNCACHED, 2 * 2, size="slow", odd="gated feed-forward layers, fewer keys")
def llama() -> nn.Module:
    import transformers as hf

    return hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=50, num_key_value_heads=1, **SIZES))


@hugging_face("hf Mixtral", UNCACHED, 2 * 2, size="slow", odd="routed experts")
def mixtral() -> nn.Module:
    import transformers as hf

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    return hf.MixtralForCausalLM(hf.MixtralConfig(vocab_size=50, **experts, **SIZES))


@hugging_face(
    "hf T5",
    UNCACHED.replace("{", "{'decoder_input_ids': randint(2, 50, (4, 5)), "),
    2 * 2 + 3,
    odd="an encoder and a decoder",
)
def t5() -> nn.Module:
    import transformers as hf

    config = hf.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=1, num_heads=2)
    return hf.T5ForConditionalGeneration(config)


@hugging_face("hf ViT", PHOTOS % (16, 16), 2 * 2, size="slow")
def vit() -> nn.Module:
    import transformers as hf

    return hf.ViTForImageClassification(hf.ViTConfig(image_size=16, patch_size=8, **SIZES))


@hugging_face("hf Swin", PHOTOS % (32, 32), (2 + 1) * 2, size="slow")
def swin() -> nn.Module:
    import transformers as hf

    sizes: Named = {"embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4, "mlp_ratio": 2.0}
    return hf.SwinForImageClassification(hf.SwinConfig(image_size=32, patch_size=4, **sizes))


@hugging_face("hf ConvNeXt", PHOTOS % (64, 64), 1 + 2 + 1 + 1, size="slow")
def convnext() -> nn.Module:
    import transformers as hf

    return hf.ConvNextForImageClassification(hf.ConvNextConfig(hidden_sizes=[8, 12, 16, 20], depths=[1, 2, 1, 1]))


@hugging_face("hf ResNet", PHOTOS % (64, 64), 2 + 1 + 1, fitted=3, size="slow")
def resnet() -> nn.Module:
    import transformers as hf

    return hf.ResNetForImageClassification(
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32, 32], depths=[2, 1, 1])
    )


STAGES = [
    f"layer{stage}.{block}: conv1 conv2{' | downsample.0' * (stage > 1 and block == 0)}"
    for stage in (1, 2, 3, 4)
    for block in (0, 1)
]


@row(
    "randn(2, 3, 32, 32)",
    STAGES,
    name="ResNet-18",
    stem="conv1",
    heads="fc",
    roles="stem: bn1; last: *.bn2; down: *.downsample.1; other: *.bn1",
    loss=entropy,
    needs=("torchvision",),
    size="slow",
)
def resnet18() -> nn.Module:
    import torchvision

    return torchvision.models.resnet18(num_classes=10)  # type: ignore[no-any-return]


@row(
    "randn(4, 3, 32, 32)",
    count=(12, 0, 0),
    name="small timm ViT",
    roles="last: blocks.*; other: norm",
    loss=entropy,
    optimizer=adamw,
    needs=("timm",),
)
def timm_vit() -> nn.Module:
    import timm

    return timm.create_model("test_vit", num_classes=10, img_size=32)  # type: ignore[no-any-return]


@row(
    "randn(4, 3, 32, 32)",
    count=(6, 0, 0),
    name="small timm Swin",
    loss=entropy,
    optimizer=adamw,
    needs=("timm",),
    size="slow",
)
def timm_swin() -> nn.Module:
    import timm

    sizes: Named = {"embed_dim": 8, "depths": (2, 1), "num_heads": (2, 2), "window_size": 4, "drop_path_rate": 0.0}
    name = "swin_tiny_patch4_window7_224"
    return timm.create_model(name, img_size=32, patch_size=2, num_classes=10, **sizes)  # type: ignore[no-any-return]


@row(
    "randn(2, 3, 32, 32)",
    count=(3, 0, 2),
    name="small timm NF-ResNet",
    loss=entropy,
    needs=("timm",),
    odd="without norms",
    size="slow",
)
def nf_resnet() -> nn.Module:
    import timm

    return timm.create_model("nf_resnet26", depths=(2, 1), channels=(32, 64), skipinit=True, num_classes=5)  # type: ignore[no-any-return]


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
