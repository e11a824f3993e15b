"""Small networks of other packages, with a batch and a loss, that are converted and diagnosed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.models import resnet_cifar, wide_resnet

Loss = Callable[[Any, Tensor], Tensor]
Prepared = tuple[nn.Module, Any, Tensor, Loss]
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 50,
}


def of_images(network: nn.Module, side: int = 32, examples: int = 16) -> Prepared:
    return network, torch.randn(examples, 3, side, side), torch.randint(10, (examples,)), F.cross_entropy


def torchvision(build: Callable[[Any], nn.Module], side: int = 32) -> Callable[[], Prepared]:
    return lambda: of_images(build(pytest.importorskip("torchvision").models), side)


def timm(name: str, side: int = 32, **options: Any) -> Callable[[], Prepared]:
    return lambda: of_images(pytest.importorskip("timm").create_model(name, num_classes=10, **options), side)


def of_timm(kind: str, **options: Any) -> Callable[[], Prepared]:
    return lambda: of_images(getattr(pytest.importorskip("timm.models"), kind)(num_classes=10, **options))


def transformers(name: str, options: dict[str, Any], *, is_classifier: bool = False) -> Callable[[], Prepared]:
    def make() -> Prepared:
        package = pytest.importorskip("transformers")
        kind = "ForSequenceClassification" if is_classifier else "LMHeadModel" if name == "GPT2" else "ForCausalLM"
        network = getattr(package, name + kind)(getattr(package, f"{name}Config")(**options))
        words = torch.randint(3, 50, (8, 12))
        if is_classifier:
            return network, {"input_ids": words}, torch.arange(8) % 2, of_classes
        return network, {"input_ids": words[:, :-1]}, words[:, 1:], next_word

    return make


def next_word(outputs: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())


def of_classes(outputs: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits, targets)


class UNet(nn.Module):
    """Two resolutions with a path between them that skips the lower one."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low, self.up = (self._part(*sizes) for sizes in ((3, 8), (8, 16), (24, 8)))
        self.last = nn.Conv2d(8, 2, 1)

    @staticmethod
    def _part(before: int, after: int) -> nn.Sequential:
        layers = [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        low = F.interpolate(self.low(F.max_pool2d(high, 2)), scale_factor=2.0)
        result: Tensor = self.last(self.up(torch.cat([high, low], 1)))
        return result


def of_maps() -> Prepared:
    x = torch.randn(4, 3, 32, 32)
    return UNet(), x, (x.mean(1) > 0).long(), F.cross_entropy


NETWORKS: dict[str, Callable[[], Prepared]] = {
    "wide_resnet": lambda: of_images(wide_resnet(10, 1)),
    "resnet_cifar": lambda: of_images(resnet_cifar(20)),
    "unet": of_maps,
    "resnet": torchvision(lambda models: models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=10)),
    "bottleneck": torchvision(lambda models: models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], num_classes=10)),
    "densenet": torchvision(
        lambda models: models.DenseNet(growth_rate=8, block_config=(2, 3, 2), num_init_features=16, num_classes=10)
    ),
    "mobilenet": torchvision(lambda models: models.mobilenet_v2(width_mult=0.25, num_classes=10)),
    "shufflenet": torchvision(lambda models: models.shufflenet_v2_x0_5(num_classes=10)),
    "swin": torchvision(
        lambda models: models.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10),
    ),
    "vit": torchvision(lambda models: models.VisionTransformer(32, 8, 3, 4, 32, 64, num_classes=10)),
    **{
        name: timm(name)
        for name in (
            *("test_byobnet", "test_convnext", "test_convnext3", "test_nfnet", "test_resnet", "test_efficientnet"),
            *("test_efficientnet_ln", "test_efficientnet_gn", "test_mambaout", "resnetv2_18", "regnetx_002"),
        )
    },
    "test_vit": timm("test_vit", img_size=32),
    "test_vit2": timm("test_vit2", img_size=32),
    "test_coatnet": timm("test_coatnet", 64, img_size=64),
    "mixer": of_timm("MlpMixer", img_size=32, patch_size=8, num_blocks=3, embed_dim=32),
    "convmixer": of_timm("ConvMixer", dim=32, depth=4, patch_size=4, kernel_size=5),
    "poolformer": of_timm("MetaFormer", depths=(1, 1, 2, 1), dims=(16, 32, 48, 64)),
    "cait": timm("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=2),
    "xcit": timm("xcit_nano_12_p8_224", img_size=32, embed_dim=32, depth=2, num_heads=2),
    "bert": transformers("Bert", SIZES, is_classifier=True),
    "albert": transformers("Albert", SIZES | {"embedding_size": 16}, is_classifier=True),
    "distilbert": transformers(
        "DistilBert", {"vocab_size": 50, "dim": 32, "n_layers": 3, "n_heads": 2, "hidden_dim": 64}, is_classifier=True
    ),
    "gpt2": transformers(
        "GPT2", {"vocab_size": 50, "n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 16} | ENDS
    ),
    "llama": transformers("Llama", SIZES),
    "neox": transformers("GPTNeoX", SIZES),
    "gemma": transformers("Gemma", SIZES | {"head_dim": 16, "num_key_value_heads": 1}),
}
