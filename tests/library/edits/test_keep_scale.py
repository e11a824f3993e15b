"""The edit that gives weights the scale of the norms: closed forms, fresh networks of libraries, what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import pytest
import timm
import torch
import torchvision
from edit_helpers import altered, close, images
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrizations import weight_norm
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import normless as nl
from normless.edits import Change
from normless.models import dense, transformer, wide_resnet


def chain(gamma: float = 1.0, beta: float = 0.0) -> nn.Sequential:
    """Linear, norm, ReLU, linear, norm, ReLU, classifier; γ and β of the second norm."""
    torch.manual_seed(0)
    layers = [nn.Linear(9, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 15), nn.BatchNorm1d(15)]
    nn.init.constant_(layers[-1].get_parameter("weight"), gamma)
    nn.init.constant_(layers[-1].get_parameter("bias"), beta)
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(15, 4))


def factors(before: nn.Module, after: nn.Module) -> dict[str, float]:
    """By what each parameter was multiplied; fails where it was not one number."""
    found, own = {}, dict(before.named_parameters())
    for name, value in after.named_parameters():
        if name in own and own[name].any():
            found[name] = float((value.norm() / own[name].norm()).detach())
            close(value, own[name] * found[name])
    return found


def test_a_layer_that_a_norm_reads_gives_what_the_norm_gave() -> None:
    """Of independent z ~ N(0, v) relu(z) has mean √(v / 2π) and second moment v / 2."""
    model, x = chain(), torch.randn(5, 9)
    found = factors(model, nl.convert(model, "none", x))
    first, second, shift = (model.get_parameter(name).detach() for name in ("0.weight", "3.weight", "3.bias"))
    assert found["0.weight"] == pytest.approx(sqrt(12 / float(first.square().sum())), rel=1e-5)
    variances = first.square().sum(1) * found["0.weight"] ** 2
    means = shift + second @ (variances / (2 * pi)).sqrt()
    power = (means.square() + second.square() @ (variances * (1 / 2 - 1 / (2 * pi)))).mean()
    assert found["3.weight"] == pytest.approx(float(power**-0.5), rel=1e-4)
    assert found["3.bias"] == pytest.approx(found["3.weight"], rel=1e-5)
    assert found["6.weight"] == found["6.bias"] == 1
    # γ and β are what the layer comes to; a γ of 0, which a multiplier stands for, counts as 1.
    for gamma, beta, scheme in ((0.5, 0.0, "none"), (0.0, 0.0, "none"), (0.5, 2.0, "none(keep_scale=all)")):
        shifted = chain(gamma, beta)
        scale = found["3.weight"] * sqrt((gamma or 1) ** 2 + beta**2)
        assert factors(shifted, nl.convert(shifted, scheme, x))["3.weight"] == pytest.approx(scale, rel=1e-5)


def test_what_no_norm_reads_further_on_stays() -> None:
    """In `dense` the classifier reads the stream itself, so that stem and branch ends have a scale of their own."""
    model = dense(2, 20, in_features=6, branch_layers=2)
    found = factors(model, nl.convert(model, "none"))
    kept = {"stem.linear1.weight", "classifier.weight", "classifier.bias"}
    kept |= {f"blocks.{block}.branch.linear2.weight" for block in (0, 1)}
    assert {name for name, factor in found.items() if factor == 1} == kept
    # Post-norm: only the stream's start has a norm's scale. Its embedding makes the logits too: half of the way.
    words = transformer(vocabulary=11, layers=1, width=8, heads=2, feed_forward=8, dropout=0.0)
    assert altered(words, nl.convert(words, "none")) == {"embedding.weight", "classifier.weight"}
    # A weight that a layer computes by itself.
    computed = nn.Sequential(weight_norm(nn.Linear(6, 6)), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    assert not altered(computed, nl.convert(computed, "none", torch.randn(8, 6)))


@pytest.mark.parametrize("scheme", ["none", "skipinit", "remove_branches"])
def test_fresh_weights_are_scaled_and_trained_ones_left_bit_for_bit(scheme: str) -> None:
    model = wide_resnet(10, 1)
    assert not altered(model, nl.convert(model, f"{scheme}(keep_scale=False)"))
    fresh = nl.convert(model, scheme)
    scaled = {name for name, factor in factors(model, fresh).items() if factor != 1}
    assert "stem.weight" in scaled
    assert not any(name.startswith("classifier") for name in scaled)
    # A forward pass alone does not make a network trained.
    model(images()).logsumexp(1).mean().backward()
    assert not altered(fresh, nl.convert(model, scheme))
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not altered(model, nl.convert(model, scheme))
    (said,) = [change for change in nl.plan(model, scheme) if "KeepScale" in change.edit]
    assert said.path == ""
    assert all(part in said.what for part in ("blocks.0.norm1", "keep_scale='all'", "nl.fold"))


SIZES: dict[str, Any] = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GPT2: dict[str, Any] = {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4, "use_cache": False}
NETWORKS: dict[str, tuple[Callable[..., Any], int]] = {
    "resnet18": (torchvision.models.resnet18, 64),
    "convnext": (lambda **classes: timm.create_model("test_convnext", **classes), 64),
    "bert": (lambda **_: BertForSequenceClassification(BertConfig(**SIZES, intermediate_size=128)), 0),
    "gpt2": (lambda **_: GPT2LMHeadModel(GPT2Config(**GPT2)), 0),
}


def built(name: str) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    build, size = NETWORKS[name]
    x = torch.randn(8, 3, size, size) if size else torch.arange(4 * 24).reshape(4, 24) % 97
    return build(num_classes=10), x


def spread(net: nn.Module, x: Tensor) -> float:
    """The deviation of the logits, with the batch's statistics and without dropout."""
    for module in net.modules():
        module.training = isinstance(module, _BatchNorm)
    with torch.no_grad():
        found = net(x)
    return float((found if isinstance(found, Tensor) else found.logits).std())


@pytest.mark.parametrize("name", ["resnet18", "convnext", "gpt2"])
def test_logits_have_the_scale_of_the_normalized_networks(name: str) -> None:
    model, x = built(name)
    mapped = nl.residual_map(model, x[:2])
    net, before = (
        nl.convert(model, text, x[:2], residual_map=mapped) for text in ("skipinit", "skipinit(keep_scale=False)")
    )
    # A layer scale near zero beside a multiplier of zero starts at 1.
    assert not {changed for changed in altered(model, before) if not changed.endswith(".gamma")}
    assert 0.25 <= spread(net, x) / spread(model, x) <= 4
    assert spread(before, x) / spread(model, x) < 0.3


def plan_of(model: nn.Module, x: Tensor) -> dict[str, Change]:
    return {change.path: change for change in nl.plan(model, "none", x[:2]) if "KeepScale" in change.edit}


def test_embeddings_that_a_norm_adds_up_have_one_factor_and_a_tied_one_goes_half_of_the_way() -> None:
    """Behind both uses of a tied embedding logits are √g · √g times as large, which is what the norm gave them."""
    model, x = built("bert")
    found = plan_of(model, x)
    tables = [f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")]
    assert set(found) == set(tables)
    squares = sum(float(model.get_parameter(name).detach().square().mean()) for name in tables)
    said = f"weight × {squares**-0.5:.4g}: second moment 1 before bert.embeddings.LayerNorm"
    assert {change.what for change in found.values()} == {said}
    model, x = built("gpt2")
    tied, positions = model.transformer.wte.weight.detach(), model.transformer.wpe.weight.detach()
    net: Any = nl.convert(model, "none", x[:2])
    scale = float(tied.square().mean() + positions.square().mean()) ** -0.25
    close(net.transformer.wte.weight.detach(), tied * scale)
    assert net.lm_head.weight is net.transformer.wte.weight
    assert "makes the logits too" in plan_of(model, x)["transformer.wte.weight"].what
