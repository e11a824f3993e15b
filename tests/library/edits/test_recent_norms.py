"""DyT, Derf, LayerNorm scaling, Peri-LN and weight standardization against networks that are changed by hand."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from math import sqrt
from typing import Any

import pytest
import timm
import torch
import transformers as hf
from edit_helpers import close, images, randomized
from gallery import ROWS
from gallery.libraries import Encoder
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import dense, resnet_cifar, wide_resnet
from normless.nn._activation import Pointwise

SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 32, "head_dim": 8,
}  # fmt: skip
GPT: dict[str, Any] = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12}
GPT |= {"bos_token_id": 0, "eos_token_id": 1}


class Reference(nn.Module):
    """γ·φ(αx + s) + β as published, γ and β shaped beforehand; torch's encoder layers read `eps`."""

    eps = 0.0

    def __init__(self, function: Callable[[Tensor], Tensor], alpha: float, gamma: Any, beta: Any) -> None:
        super().__init__()
        self.function, self.weight, self.bias = function, gamma, beta
        self.alpha, self.shift = nn.Parameter(torch.tensor([alpha])), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.alpha * x + self.shift)
        y = y if self.weight is None else y * self.weight
        return y if self.bias is None else y + self.bias


def by_hand(model: nn.Module, function: Callable[[Tensor], Tensor], alpha: float) -> nn.Module:
    """A copy with every norm replaced by its class, as the published code walks over children."""
    copied = deepcopy(model)
    for parent in list(copied.modules()):
        for name, norm in list(parent.named_children()):
            kind = type(norm).__name__
            if not kind.endswith(("Norm", "Norm2d", "RMSNorm", "BatchNorm1d")):
                continue
            gamma, beta = norm.weight, getattr(norm, "bias", None)
            gamma = gamma + 1 if kind == "GemmaRMSNorm" else gamma  # type: ignore[assignment, operator]
            if kind in ("BatchNorm2d", "LayerNorm2d"):
                gamma, beta = gamma[:, None, None], beta[:, None, None]  # type: ignore[index]
            setattr(parent, name, Reference(function, alpha, gamma, beta))
    return copied


def tokens() -> Tensor:
    return torch.randint(2, 50, (4, 7))


def words() -> dict[str, Any]:
    return {"input_ids": tokens(), "use_cache": False}


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "timm vit": (
        lambda: timm.create_model("test_vit", num_classes=10, img_size=32),
        lambda: torch.randn(4, 3, 32, 32),
    ),
    "torch pre-norm": (lambda: Encoder(True), tokens),
    "torch post-norm": (lambda: Encoder(False), tokens),
    "gpt2": (lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT)), words),
    "gemma": (lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**SIZES)), words),
    "resnet": (lambda: resnet_cifar(8), images),
    "wide resnet": (lambda: wide_resnet(10, 1), images),
    "dense": (lambda: dense(3, 8, in_features=4), lambda: torch.randn(6, 4)),
}


def run(net: nn.Module, inputs: Any) -> Any:
    output = net(**inputs) if isinstance(inputs, dict) else net(inputs)
    return output if isinstance(output, Tensor) else output.logits


def conversion(name: str, scheme: str) -> tuple[Any, Any, Any]:
    """A network with random γ and β in evaluation mode, its conversion, and inputs."""
    build, make = NETWORKS[name]
    model, inputs = randomized(build()).eval(), make()
    return model, nl.convert(model, scheme, example_inputs=inputs), inputs


@pytest.mark.parametrize(
    ("name", "scheme", "function", "alpha"),
    [
        *((name, "dyt", torch.tanh, 0.5) for name in ("timm vit", "torch pre-norm", "gemma", "resnet", "dense")),
        ("gpt2", "derf(alpha=0.7)", torch.erf, 0.7),
    ],
)
def test_norms_become_the_published_functions(name: str, scheme: str, function: Any, alpha: float) -> None:
    model, net, inputs = conversion(name, scheme)
    reference = by_hand(model, function, alpha)
    count = sum(isinstance(one, Pointwise) for one in net.modules())
    assert count == sum(isinstance(one, Reference) for one in reference.modules()) > 0
    close(run(net, inputs), run(reference, inputs), rtol=1e-5, atol=1e-6)
    for one in (net, reference):
        run(one, inputs).square().sum().backward()
    alphas = [[one.alpha.grad for one in net.modules() if hasattr(one, "alpha")] for net in (net, reference)]
    close(*alphas, rtol=1e-3, atol=1e-4)


def test_alpha_of_the_norms_ahead_of_attention() -> None:
    expected = {
        "gpt2": {"transformer.h.0.ln_1", "transformer.h.1.ln_1"},
        "torch post-norm": {"encoder.layers.0.norm2"},
    }
    for name, paths in expected.items():
        _, net, _ = conversion(name, "dyt(alpha=0.2, attention_alpha=0.8)")
        alphas = {path: round(one.alpha.item(), 6) for path, one in net.named_modules() if isinstance(one, Pointwise)}
        assert {path for path, alpha in alphas.items() if alpha == 0.8} == paths, name
        assert {*alphas.values()} == {0.2, 0.8}


def scaled(model: nn.Module, numbers: dict[str, int]) -> nn.Module:
    """A copy whose norms are followed by a factor 1/√l."""
    copied = deepcopy(model)
    for path, number in numbers.items():
        copied.get_submodule(path).register_forward_hook(lambda _, __, y, number=number: y / sqrt(number))
    return copied


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        ("gpt2", "transformer.h.{}.ln_{}"),
        ("timm vit", "blocks.{}.norm{}"),
    ],
)
def test_norms_are_scaled_by_the_depth_of_their_layer(name: str, norms: str) -> None:
    model, net, inputs = conversion(name, "layer_norm_scaling")
    depth = {"gpt2": 2, "timm vit": 6}[name]
    expected = run(scaled(model, {norms.format(at, part): at + 1 for at in range(depth) for part in (1, 2)}), inputs)
    close(run(net, inputs), expected, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(run(model, inputs), expected, rtol=1e-3)
    assert torch.equal(run(pickle.loads(pickle.dumps(net)), inputs), run(net, inputs))


def test_peri_norm_of_torchs_encoder_of_other_rms_norms_and_of_convolutions() -> None:
    """With a hook on the last layer of each branch of a Gemma, where the new γ is 2 though it is 1 + w."""
    model, net, x = conversion("torch pre-norm", "peri_norm(gamma=0.3)")
    h = model.embedding(x)
    for layer in model.encoder.layers:
        y = layer.norm1(h)
        h = h + 0.3 * F.layer_norm(layer.self_attn(y, y, y, need_weights=False)[0], (16,))
        h = h + 0.3 * F.layer_norm(layer.linear2(torch.relu(layer.linear1(layer.norm2(h)))), (16,))
    close(run(net, x), model.classifier(h.mean(1)), rtol=1e-4, atol=1e-5)
    model, net, inputs = conversion("gemma", "peri_norm(gamma=2)")
    for path, module in model.named_modules():
        if path.endswith(("o_proj", "down_proj")):
            module.register_forward_hook(lambda _, __, y: 2 * y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt())
    close(run(net, inputs), run(model, inputs), rtol=1e-4, atol=1e-5)
    model, net, x = conversion("wide resnet", "peri_norm")
    old, new, h = model.train().blocks[1], net.train().blocks[1], torch.randn(8, 16, 8, 8)
    a = torch.relu(old.norm1(h))
    branch = F.batch_norm(old.conv2(torch.relu(old.norm2(old.conv1(a)))), None, None, training=True)
    close(new(h), old.shortcut(a) + branch, rtol=1e-4, atol=1e-5)
    close(nl.fold(net.eval(), x)[0](x), net(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scheme", ["weight_standardization", "weight_standardization(groups=None)"])
def test_weight_standardization_has_no_gain(scheme: str) -> None:
    model, net, _ = conversion("wide resnet", scheme)
    for path, old in model.named_modules():
        if isinstance(old, nn.Conv2d):
            w = old.weight
            w = (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), correction=0, keepdim=True)
            x = torch.randn(2, old.in_channels, 8, 8)
            expected = F.conv2d(x, w, old.bias, old.stride, old.padding)
            close(net.get_submodule(path)(x), expected, rtol=1e-4, atol=1e-4)
    grouped = {type(net.get_submodule(path)) for path in nl.residual_map(net).norms}
    assert grouped == {nn.BatchNorm2d if "None" in scheme else nn.GroupNorm}
    assert {*dict(net.named_parameters())} == {*dict(model.named_parameters())}


@pytest.mark.parametrize("name", ["GPT", "LLaMA"])
def test_the_norm_after_the_last_block_stays_with_its_weights(name: str) -> None:
    scheme = "dyt(final=keep)"
    model, (inputs, _) = ROWS[name].network(), ROWS[name].example()
    mapped = nl.residual_map(model, *inputs)
    net = nl.convert(model, scheme, *inputs, residual_map=mapped)
    replaced = {path for path, one in net.named_modules() if isinstance(one, Pointwise)}
    (kept,) = set(mapped.norms) - replaced
    assert kept.rpartition(".")[2] == "ln_f"
    assert type(net.get_submodule(kept)) is type(model.get_submodule(kept))
    assert {one.path for one in nl.plan(model, scheme, *inputs, residual_map=mapped) if "kept" in str(one)} == {kept}
