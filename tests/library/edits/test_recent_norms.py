"""DyT, Derf, LayerNorm scaling, Peri-LN and weight standardization against networks that are changed by hand."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import timm
import torch
import transformers as hf
from edit_helpers import images, randomized
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.edits import BranchEndNorms
from normless.models import dense, resnet_cifar, transformer, wide_resnet
from normless.nn import Pointwise

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "head_dim": 8,
}


class Reference(nn.Module):
    """γ·φ(αx + s) + β as published, γ and β shaped beforehand; torch's encoder layers read `eps`."""

    eps = 0.0

    def __init__(self, function: Callable[[Tensor], Tensor], alpha: float, gamma: Any, beta: Any) -> None:
        super().__init__()
        self.function = function
        self.alpha, self.shift = nn.Parameter(torch.tensor([alpha])), nn.Parameter(torch.zeros(1))
        self.weight, self.bias = gamma, beta

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.alpha * x + self.shift)
        y = y if self.weight is None else y * self.weight
        return y if self.bias is None else y + self.bias


def by_hand(model: nn.Module, function: Callable[[Tensor], Tensor], alpha: float) -> nn.Module:
    """A copy with every norm replaced by its class, as the published code walks over children."""
    copied = deepcopy(model)
    for parent in list(copied.modules()):
        for name, norm in list(parent.named_children()):
            if not type(norm).__name__.endswith(("Norm", "Norm2d", "RMSNorm", "BatchNorm1d")):
                continue
            gamma, beta = norm.weight, getattr(norm, "bias", None)
            if type(norm).__name__ == "GemmaRMSNorm":
                gamma = gamma + 1
            if isinstance(norm, nn.BatchNorm2d) or type(norm).__name__ == "LayerNorm2d":
                gamma, beta = gamma[:, None, None], beta[:, None, None]
            setattr(parent, name, Reference(function, alpha, gamma, beta))
    return copied


class Encoder(nn.Module):
    """torch's encoder between an embedding and a classifier."""

    def __init__(self, norm_first: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.classifier = nn.Linear(16, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classifier(self.encoder(self.embedding(tokens)).mean(1))


def tokens() -> Tensor:
    return torch.randint(2, 50, (4, 7))


def gpt2() -> nn.Module:
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12}
    return hf.GPT2LMHeadModel(hf.GPT2Config(bos_token_id=0, eos_token_id=1, **sizes))


def vit(**options: Any) -> nn.Module:
    return timm.create_model("test_vit", num_classes=10, img_size=32, **options)


def bert() -> nn.Module:
    sizes = {name: SIZES[name] for name in SIZES if not name.startswith(("num_key", "head"))}
    return hf.BertForSequenceClassification(hf.BertConfig(**sizes))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "timm vit": (vit, lambda: torch.randn(4, 3, 32, 32)),
    "timm convnext": (lambda: timm.create_model("test_convnext", num_classes=10), lambda: torch.randn(2, 3, 64, 64)),
    "torch pre-norm": (lambda: Encoder(True), tokens),
    "torch post-norm": (lambda: Encoder(False), tokens),
    "gpt2": (gpt2, lambda: {"input_ids": tokens(), "use_cache": False}),
    "bert": (bert, lambda: {"input_ids": tokens()}),
    "llama": (
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
        lambda: {"input_ids": torch.randint(2, 50, (4, 16)), "use_cache": False},
    ),
    "gemma": (
        lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**SIZES)),
        lambda: {"input_ids": tokens(), "use_cache": False},
    ),
    "resnet": (lambda: resnet_cifar(8), images),
    "wide resnet": (lambda: wide_resnet(10, 1), images),
    "dense": (lambda: dense(3, 8, in_features=4), lambda: torch.randn(6, 4)),
}


def run(net: nn.Module, inputs: Any) -> Tensor:
    output = net(**inputs) if isinstance(inputs, dict) else net(inputs)
    return output if isinstance(output, Tensor) else output.logits


def conversion(name: str, scheme: str, **options: Any) -> tuple[nn.Module, nn.Module, Any]:
    """A network with random γ and β in evaluation mode, its conversion, and inputs; what `plan` says is checked."""
    build, make = NETWORKS[name]
    model, inputs = randomized(build(**options)).eval(), make()
    mapped = nl.residual_map(model, example_inputs=inputs)
    net = nl.convert(model, scheme, example_inputs=inputs, residual_map=mapped)
    assert nl.plan(model, scheme, example_inputs=inputs, residual_map=mapped)
    return model, net, inputs


QUICK = ("timm vit", "torch pre-norm", "gemma", "resnet", "dense")
DERF = ("derf(alpha=0.7)", torch.erf, 0.7)


@pytest.mark.parametrize(
    ("name", "scheme", "function", "alpha"),
    [
        *((name, "dyt", torch.tanh, 0.5) for name in QUICK),
        ("gpt2", *DERF),
        *(
            pytest.param(name, "dyt", torch.tanh, 0.5, marks=pytest.mark.slow)
            for name in NETWORKS
            if name not in QUICK
        ),
        *(pytest.param(name, *DERF, marks=pytest.mark.slow) for name in ("wide resnet", "torch post-norm")),
    ],
)
def test_norms_become_the_published_functions(name: str, scheme: str, function: Any, alpha: float) -> None:
    model, net, inputs = conversion(name, scheme)
    reference = by_hand(model, function, alpha)
    count = sum(isinstance(one, Pointwise) for one in net.modules())
    assert count == sum(isinstance(one, Reference) for one in reference.modules()) > 0
    torch.testing.assert_close(run(net, inputs), run(reference, inputs), rtol=1e-5, atol=1e-6)
    assert nl.residual_map(net).norms == {}
    for one in (net, reference):
        run(one, inputs).square().sum().backward()
    alphas = [[one.alpha.grad for one in net.modules() if hasattr(one, "alpha")] for net in (net, reference)]
    torch.testing.assert_close(*alphas, rtol=1e-3, atol=1e-4)


def test_alpha_of_the_norms_ahead_of_attention() -> None:
    expected = {
        "gpt2": {"transformer.h.0.ln_1", "transformer.h.1.ln_1"},
        "torch post-norm": {f"encoder.layers.{index}.norm2" for index in range(2)},
        "timm vit": {f"blocks.{index}.norm1" for index in range(6)},
    }
    for name, paths in expected.items():
        _, net, _ = conversion(name, "dyt(alpha=0.2, attention_alpha=0.8)")
        alphas = {path: one.alpha.item() for path, one in net.named_modules() if isinstance(one, Pointwise)}
        assert {path for path, alpha in alphas.items() if alpha == pytest.approx(0.8)} == paths, name
        assert {round(alpha, 6) for alpha in alphas.values()} == {0.2, 0.8}
    with pytest.raises(nl.UnsupportedEditError, match="it has no normalization that an attention reads"):
        nl.convert(resnet_cifar(8), "dyt(attention_alpha=0.8)")


def test_roles_of_the_parameters() -> None:
    """As in the published code for images, nothing of DyT decays: γ and α are factors, β and s are biases."""
    for scheme, scalars in (("dyt", 1), ("derf", 2)):
        _, net, _ = conversion("torch pre-norm", scheme)
        groups = {group["name"]: group for group in nl.param_groups(net, lr=0.1, weight_decay=0.1)}
        assert len(groups["layer_scale"]["params"]) == 6
        assert len(groups["scalars"]["params"]) == 6 * scalars
        own = {id(one) for module in net.modules() if isinstance(module, Pointwise) for one in module.parameters()}
        assert own.isdisjoint(map(id, groups["weights"]["params"]))
        assert all(group["weight_decay"] == 0 for name, group in groups.items() if name != "weights")


LAYERS = {
    "gpt2": {f"transformer.h.{index}.ln_{part}": index + 1 for index in range(2) for part in (1, 2)},
    "torch pre-norm": {f"encoder.layers.{index}.norm{part}": index + 1 for index in range(3) for part in (1, 2)},
    "timm vit": {f"blocks.{index}.norm{part}": index + 1 for index in range(6) for part in (1, 2)},
}


def scaled(model: nn.Module, numbers: dict[str, int]) -> nn.Module:
    """A copy whose norms are followed by a factor 1/√l."""
    copied = deepcopy(model)
    for path, number in numbers.items():
        copied.get_submodule(path).register_forward_hook(lambda _, __, y, number=number: y / math.sqrt(number))
    return copied


@pytest.mark.parametrize("name", LAYERS)
def test_norms_are_scaled_by_the_depth_of_their_layer(name: str) -> None:
    model, net, inputs = conversion(name, "layer_norm_scaling")
    expected = run(scaled(model, LAYERS[name]), inputs)
    torch.testing.assert_close(run(net, inputs), expected, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(run(model, inputs), expected, rtol=1e-3)
    assert len(nl.residual_map(net).norms) == len(nl.residual_map(model, example_inputs=inputs).norms)
    assert torch.equal(run(pickle.loads(pickle.dumps(net)), inputs), run(net, inputs))


def test_encoder_and_decoder_count_their_layers_each() -> None:
    model = transformer(30, 2, 16, 2, 24, norm="pre", decoder_layers=2).eval()
    blocks = [("encoder", index, kind) for index in range(2) for kind in ("self_attention", "feed_forward")]
    blocks += [
        ("decoder", i, kind) for i in range(2) for kind in ("self_attention", "cross_attention", "feed_forward")
    ]
    numbers = {f"{stack}.layers.{index}.{kind}.norm": index + 1 for stack, index, kind in blocks}
    inputs = model.example_inputs()
    net = nl.convert(model, "layer_norm_scaling")
    torch.testing.assert_close(net(*inputs), scaled(model, numbers)(*inputs))


@pytest.mark.slow
def test_attention_and_feed_forward_in_one_block_are_a_layer() -> None:
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 12, "rotary_dim": 4}
    model = hf.GPTJForCausalLM(hf.GPTJConfig(**sizes)).eval()
    inputs = {"input_ids": tokens(), "use_cache": False}
    net = nl.convert(model, "layer_norm_scaling", **inputs)
    expected = run(scaled(model, {f"transformer.h.{index}.ln_1": index + 1 for index in range(3)}), inputs)
    torch.testing.assert_close(run(net, inputs), expected, rtol=1e-5, atol=1e-6)


def test_peri_norm_of_a_torch_encoder() -> None:
    model, net, x = conversion("torch pre-norm", "peri_norm(gamma=0.3)")
    h = model.embedding(x)
    for layer in model.encoder.layers:
        y = layer.norm1(h)
        h = h + 0.3 * F.layer_norm(layer.self_attn(y, y, y, need_weights=False)[0], (16,))
        h = h + 0.3 * F.layer_norm(layer.linear2(torch.relu(layer.linear1(layer.norm2(h)))), (16,))
    torch.testing.assert_close(run(net, x), model.classifier(h.mean(1)), rtol=1e-4, atol=1e-5)


def test_peri_norm_takes_rms_norms_of_others() -> None:
    """A hook on the last layer of each branch; the new γ is 2 where it is 1 + w too."""
    model, net, inputs = conversion("gemma", "peri_norm(gamma=2)")
    reference = deepcopy(model)
    for path, module in reference.named_modules():
        if path.endswith(("o_proj", "down_proj")):
            module.register_forward_hook(lambda _, __, y: 2 * y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt())
    torch.testing.assert_close(run(net, inputs), run(reference, inputs), rtol=1e-4, atol=1e-5)


def test_peri_norm_comes_before_a_drop_of_the_branch() -> None:
    """A dropped branch adds nothing, whatever the β of its norm."""
    torch.manual_seed(0)
    model, x = vit(drop_path_rate=0.5).train(), torch.randn(8, 3, 32, 32)
    net = nl.convert(model, "peri_norm", x)
    assert nl.residual_map(net).depth == 12
    seen = []
    for name, module in net.named_modules():
        if name.endswith("drop_path2.norm"):
            nn.init.constant_(module.bias, 3.0)
        if name == "blocks.5.drop_path2":
            module.register_forward_hook(lambda _, __, y: seen.append(y))
    net(x)
    rows = seen[0].flatten(1).abs().amax(1)
    assert 0 < int((rows == 0).sum()) < 8
    kept = seen[0][rows > 0]
    assert kept.mean().item() == pytest.approx(2 * 3.0, rel=1e-3)


def test_peri_norm_of_a_convolutional_network() -> None:
    model = randomized(wide_resnet(10, 1)).train()
    net, x = nl.convert(model, "sandwich_norm"), images(8)
    old, new, h = model.blocks[1], net.blocks[1], torch.randn(8, 16, 8, 8)
    a = torch.relu(old.norm1(h))
    branch = F.batch_norm(old.conv2(torch.relu(old.norm2(old.conv1(a)))), None, None, training=True)
    torch.testing.assert_close(new(h), old.shortcut(a) + branch, rtol=1e-4, atol=1e-5)
    for _ in range(3):
        net(x)
    folded, _ = nl.fold(net.eval(), x)
    torch.testing.assert_close(folded(x), net(x), rtol=1e-3, atol=1e-4)


def test_peri_norm_refuses_branches_that_end_in_a_norm() -> None:
    model = hf.Gemma2ForCausalLM(hf.Gemma2Config(**SIZES))
    with pytest.raises(nl.UnsupportedEditError, match=r"already, model\.layers\.0\.post_attention"):
        nl.convert(model, nl.Scheme("test", (BranchEndNorms(),)), input_ids=tokens(), use_cache=False)


@pytest.mark.parametrize("scheme", ["weight_standardization", "weight_standardization(groups=None)"])
def test_weight_standardization_has_no_gain(scheme: str) -> None:
    model = randomized(wide_resnet(10, 1)).eval()
    net = nl.convert(model, scheme)
    for path, old in model.named_modules():
        if isinstance(old, nn.Conv2d):
            w = old.weight
            w = (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), correction=0, keepdim=True)
            x = torch.randn(2, old.in_channels, 8, 8)
            expected = F.conv2d(x, w, old.bias, old.stride, old.padding)
            torch.testing.assert_close(net.get_submodule(path)(x), expected, rtol=1e-4, atol=1e-4)
    grouped = {type(net.get_submodule(path)) for path in nl.residual_map(net).norms}
    assert grouped == {nn.BatchNorm2d if "None" in scheme else nn.GroupNorm}
    names, before = (set(dict(one.named_parameters())) for one in (net, model))
    assert names == before


@pytest.mark.parametrize("scheme", ["dyt(alpha=2)", "derf(shift=0.3)"])
def test_moments_through_dyt_are_predicted(scheme: str) -> None:
    table = nl.probe(nl.convert(dense(4, 512, in_features=64), scheme), torch.randn(512, 64), ["signal"]).signal
    for side in ("branch", "sum"):
        expected = table[f"{side}_second_moment"].to_numpy()
        assert table[f"predicted_{side}_second_moment"].to_numpy() == pytest.approx(expected, rel=0.15), side
