"""Fresh networks of torchvision, timm and transformers: trunk and logits of the scale that their norms gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torchvision
from edit_helpers import altered
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import normless as nl
from normless.edits import Change

TOKENS = torch.arange(4 * 24).reshape(4, 24) % 97
BERT: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
GPT2: dict[str, Any] = {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4, "use_cache": False}


def vit() -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=10)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=10), 64),
    "mobilenet_v2": (lambda: torchvision.models.mobilenet_v2(num_classes=10), 64),
    "regnetx_002": (lambda: timm.create_model("regnetx_002", num_classes=10), 64),
    "resnetv2": (lambda: timm.create_model("resnetv2_50", layers=(1, 1, 1, 1), num_classes=10), 64),
    "convnext": (lambda: timm.create_model("test_convnext", num_classes=10), 64),
    "coatnet": (lambda: timm.create_model("test_coatnet", num_classes=10, img_size=64), 64),
    "vit": (vit, 32),
    "bert": (lambda: BertForSequenceClassification(BertConfig(**BERT)), 0),
    "gpt2": (lambda: GPT2LMHeadModel(GPT2Config(**GPT2)), 0),
}


QUICK = ("resnet18", "convnext", "vit", "gpt2")


def built(name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    build, size = NETWORKS[name]
    return build(), torch.randn(8, 3, size, size) if size else TOKENS


def spread(net: nn.Module, x: Tensor) -> float:
    """The deviation of the logits, with the batch's statistics and without dropout."""
    for module in net.modules():
        module.training = isinstance(module, _BatchNorm)
    with torch.no_grad():
        found = net(x)
    return float((found if isinstance(found, Tensor) else found.logits).std())


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]
)
def test_logits_have_the_scale_of_the_normalized_networks(name: str) -> None:
    model, x = built(name)
    mapped = nl.residual_map(model, x[:2])
    net, before = (
        nl.convert(model, text, x[:2], residual_map=mapped) for text in ("skipinit", "skipinit(keep_scale=False)")
    )
    # A layer scale near zero beside a multiplier of zero starts at 1.
    assert not {changed for changed in altered(model, before) if not changed.endswith(".gamma")}
    share = spread(net, x) / spread(model, x)
    assert 0.25 <= share <= 4, share
    assert spread(before, x) / spread(model, x) < 0.3


def plan_of(model: nn.Module, x: Tensor) -> dict[str, Change]:
    found = {change.path: change for change in nl.plan(model, "none", x[:2]) if "KeepScale" in change.edit}
    assert found
    return found


def test_a_class_token_and_its_position_have_a_factor_of_their_own() -> None:
    """A layer norm looks at each position by itself, and timm draws the token with a deviation of a millionth."""
    model, x = built("vit")
    net = nl.convert(model, "none", x[:2])
    assert isinstance(model.cls_token, Tensor)
    assert isinstance(net.pos_embed, Tensor)
    stream: list[Tensor] = []
    net.get_submodule("blocks.0").register_forward_hook(lambda _, inputs, output: stream.append(inputs[0]))
    spread(net, x)
    by_position = stream[0].square().mean((0, 2))
    assert float(by_position[0]) == pytest.approx(1, rel=1e-4)
    assert float(by_position[1:].mean()) == pytest.approx(1, rel=0.2)
    assert set(plan_of(model, x)) == {"patch_embed.proj", "pos_embed", "cls_token"}


def test_embeddings_that_a_norm_adds_up_have_one_factor() -> None:
    model, x = built("bert")
    found = plan_of(model, x)
    tables = [f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")]
    assert set(found) == set(tables)
    squares = sum(float(model.get_parameter(name).detach().square().mean()) for name in tables)
    assert {change.what for change in found.values()} == {
        f"weight × {squares**-0.5:.4g}: second moment 1 before bert.embeddings.LayerNorm"
    }


def test_an_embedding_that_makes_the_logits_too_goes_half_of_the_way() -> None:
    """Behind both of its uses the logits are √g · √g times as large, which is what the norm gave them."""
    model, x = built("gpt2")
    squares = sum(
        float(model.transformer.get_parameter(f"{name}.weight").square().mean().detach()) for name in ("wte", "wpe")
    )
    net = nl.convert(model, "none", x[:2])
    factor = net.transformer.wte.weight / model.transformer.wte.weight
    torch.testing.assert_close(factor, torch.full_like(factor, squares**-0.25))
    assert net.lm_head.weight is net.transformer.wte.weight
    assert "makes the logits too" in plan_of(model, x)["transformer.wte.weight"].what


def test_zero_gammas_leave_branches_that_learn() -> None:
    """timm starts the last γ of each branch at 0, which a multiplier stands for: the branch itself is not 0."""
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=10, zero_init_last=True)
    x = torch.randn(4, 3, 64, 64)
    net = nl.convert(model, "skipinit(alpha=1)", x)
    outputs: list[float] = []
    conv = net.get_submodule("layer1.0.conv2")
    # At once: the sum overwrites it.
    conv.register_forward_hook(lambda _, inputs, output: outputs.append(float(output.square().mean())))
    spread(net, x)
    assert 0.3 < outputs[0] < 3
