"""KeepScale: weights take the scale that norms gave, in our networks and in others."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import pytest
import timm
import torch
import torchvision
from edit_helpers import altered, edited, images
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrizations import weight_norm
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import normless as nl
from normless.edits import Change, KeepScale, RemoveNorms
from normless.models import dense, resnet_cifar, transformer, wide_resnet

SCHEMES = ["none", "skipinit", "zeroinit", "regularized_skipinit", "rezero", "sqrt2", "remove_branches"]


def without(scheme: str) -> str:
    return f"{scheme[:-1]}, keep_scale=False)" if scheme.endswith(")") else f"{scheme}(keep_scale=False)"


def chain(gamma: float = 1.0) -> nn.Sequential:
    """Linear, norm, ReLU, linear, norm, ReLU, classifier; γ of the second norm."""
    layers = [nn.Linear(9, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 15), nn.BatchNorm1d(15)]
    nn.init.constant_(layers[-1].weight, gamma)
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(15, 4))


def second(rows: Tensor, bias: Tensor, variances: Tensor) -> float:
    """E[(w·relu(z) + b)²] over independent z ~ N(0, variances), averaged over rows w and their biases b.

    relu(z) has mean √(v / 2π) and second moment v / 2.
    """
    total = 0.0
    for row, shift in zip(rows.tolist(), bias.tolist(), strict=True):
        mean = shift + sum(w * sqrt(v / (2 * pi)) for w, v in zip(row, variances.tolist(), strict=True))
        spread = sum(w**2 * v * (1 / 2 - 1 / (2 * pi)) for w, v in zip(row, variances.tolist(), strict=True))
        total += mean**2 + spread
    return total / len(rows)


def factors(before: nn.Module, after: nn.Module) -> dict[str, float]:
    """By what each parameter was multiplied; fails where it was not one number."""
    found = {}
    own = dict(before.named_parameters())
    for name, value in after.named_parameters():
        if name in own and own[name].any():
            found[name] = float((value.norm() / own[name].norm()).detach())
            torch.testing.assert_close(value, own[name] * found[name])
    return found


def test_a_layer_that_a_norm_reads_gives_what_the_norm_gave() -> None:
    model = chain()
    found = factors(model, nl.convert(model, "none", torch.randn(5, 9)))
    assert found["0.weight"] == pytest.approx(sqrt(12 / float(model[0].weight.detach().square().sum())), rel=1e-5)
    variances = model[0].weight.detach().square().sum(1) * found["0.weight"] ** 2
    assert found["3.weight"] == pytest.approx(1 / sqrt(second(model[3].weight, model[3].bias, variances)), rel=1e-4)
    assert found["3.bias"] == pytest.approx(found["3.weight"], rel=1e-5)
    assert found["6.weight"] == found["6.bias"] == 1


def test_a_gamma_and_beta_are_what_the_layer_comes_to() -> None:
    model, plain, shifted = chain(0.5), chain(0.0), chain(0.5)
    plain.load_state_dict(model.state_dict() | {"4.weight": torch.zeros(15)})
    x = torch.randn(5, 9)
    expected = factors(model, nl.convert(model, "none", x))["3.weight"]
    # A γ of 0, which a multiplier stands for, counts as 1.
    assert factors(plain, nl.convert(plain, "none", x))["3.weight"] == pytest.approx(expected / 0.5, rel=1e-5)
    shifted.load_state_dict(model.state_dict() | {"4.bias": torch.full((15,), 2.0)})
    found = factors(shifted, nl.convert(shifted, "none(keep_scale=all)", x))["3.weight"]
    assert found == pytest.approx(expected * sqrt(0.25 + 4) / 0.5, rel=1e-5)


def test_he_weights_behind_a_relu_are_nearly_fixed_points() -> None:
    torch.manual_seed(0)
    model = edited(wide_resnet(16, 8), *nl.SCHEMES["batch_norm"]("he_fan_in"))
    x = torch.randn(2, 3, 8, 8)
    inner = {
        name: factor
        for name, factor in factors(model, nl.convert(nl_copy(model), "none", x)).items()
        if "conv" in name or "shortcut" in name
    }
    assert len(inner) == 15
    assert all(abs(factor - 1) < 0.15 for factor in inner.values()), inner
    assert abs(sum(inner.values()) / len(inner) - 1) < 0.05


def nl_copy(model: nn.Module) -> nn.Module:
    """The same weights in a network that no scheme was applied to."""
    plain = wide_resnet(16, 8)
    plain.load_state_dict(model.state_dict())
    return plain


@pytest.mark.parametrize(
    ("scheme", "growth"), [("skipinit", 1.0), ("none", 2.0), ("skipinit(alpha=1/sqrt(L))", 1 + 1 / 9)]
)
def test_the_stream_of_a_pre_activation_network(scheme: str, growth: float) -> None:
    """De & Smith, section 3: twice as much behind every block without multipliers, (1 + 1/L)^L → e with 1/√L."""
    grown, first = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        table = nl.probe(nl.convert(wide_resnet(22, 4), scheme), torch.randn(8, 3, 32, 32), ["signal"]).signal
        stream = table["sum_second_moment"].to_numpy()
        # Projections, with which every third block starts, begin a stream anew.
        grown += [stream[block] / stream[block - 1] for block in (1, 2, 4, 5, 7, 8)]
        first.append(table["skip_second_moment"][0])
    assert sum(grown) / len(grown) == pytest.approx(growth, rel=0.1 if growth > 1 else 1e-6)
    assert sum(first) / 3 == pytest.approx(1, rel=0.1)


def test_the_stream_of_a_v1_network() -> None:
    """Behind the stem's ReLU 1/2, which branches of zero keep and option A halves at both of its places."""
    torch.manual_seed(0)
    table = nl.probe(nl.convert(resnet_cifar(20), "skipinit"), torch.randn(32, 3, 32, 32), ["signal"]).signal
    measured = table["sum_second_moment"].to_numpy()
    expected = [0.5] * 3 + [0.25] * 3 + [0.125] * 3
    assert measured == pytest.approx(expected, rel=0.25)
    branches = nl.convert(resnet_cifar(20), "skipinit(alpha=1)")
    first = nl.probe(branches, torch.randn(32, 3, 32, 32), ["signal"]).signal["branch_second_moment"].to_numpy()[0]
    assert first == pytest.approx(1, rel=0.35)


def test_what_no_norm_reads_further_on_stays() -> None:
    """In `dense` the classifier reads the stream itself, so that stem and branch ends have a scale of their own."""
    model = dense(2, 20, in_features=6, branch_layers=2)
    found = factors(model, nl.convert(model, "none"))
    kept = {"stem.linear1.weight", "classifier.weight", "classifier.bias"}
    kept |= {f"blocks.{block}.branch.linear2.weight" for block in (0, 1)}
    assert {name for name, factor in found.items() if factor == 1} == kept


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_are_scaled_by_one_number_and_left_where_that_is_asked(scheme: str) -> None:
    model = wide_resnet(10, 1)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    kept, net = nl.convert(model, without(scheme)), nl.convert(model, scheme)
    assert not altered(model, kept)
    scaled = {name for name, factor in factors(model, net).items() if factor != 1}
    assert "stem.weight" in scaled
    assert not any(name.startswith("classifier") for name in scaled)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def trained(model: nn.Module) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(images()), torch.arange(4)).backward()
    optimizer.step()
    return model


@pytest.mark.parametrize("scheme", SCHEMES)
def test_trained_weights_are_left_bit_for_bit(scheme: str) -> None:
    model = trained(wide_resnet(10, 1))
    assert not set(altered(model, nl.convert(model, scheme)))
    (said,) = [change for change in nl.plan(model, scheme) if "KeepScale" in change.edit]
    assert said.path == ""
    assert said.what.startswith("left: blocks.0.norm1 is trained")
    assert "keep_scale='all'" in said.what
    assert "nl.fold" in said.what


def test_trained_weights_are_scaled_where_that_is_asked() -> None:
    model = trained(wide_resnet(10, 1))
    net = nl.convert(model, "none(keep_scale=all)")
    assert len({name for name, factor in factors(model, net).items() if factor != 1}) == 9


def test_a_forward_pass_does_not_make_a_network_trained() -> None:
    model = wide_resnet(10, 1)
    fresh = nl.convert(model, "none").state_dict()
    model(images())
    after = nl.convert(model, "none").state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in after.items())


def test_statistics_tell_of_a_norm_that_learns_nothing() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False), nn.ReLU(), nn.Linear(6, 2))
    x = torch.randn(8, 6)
    assert "0.weight" in altered(model, nl.convert(model, "none", x))
    model(3 + x)
    assert not altered(model, nl.convert(model, "none", x))


def test_plan_says_what_convert_does_and_reads_the_values() -> None:
    model = wide_resnet(10, 1)
    net = nl.convert(model, "skipinit")
    said = [change for change in nl.plan(model, "skipinit") if "KeepScale" in change.edit]
    assert len(said) == 9
    for change in said:
        ratio = net.get_submodule(change.path).weight / model.get_submodule(change.path).weight
        assert change.what.startswith(f"weight × {float(ratio.detach().mean()):.4g}: second moment 1 ")
    assert str(said[0]).startswith("KeepScale(weights='fresh'): stem: weight × ")


def test_a_network_without_values_is_converted_and_planned() -> None:
    with torch.device("meta"):
        model = wide_resnet(10, 1)
    assert next(nl.convert(model, "skipinit").parameters()).is_meta
    assert nl.plan(model, "skipinit")[0].what == "left: its weights have no values on the device meta"


def test_it_comes_before_the_norms_are_removed() -> None:
    with pytest.raises(nl.UnsupportedEditError, match="they are removed already; it comes before that"):
        edited(wide_resnet(10, 1), RemoveNorms(), KeepScale())
    with pytest.raises(nl.UnsupportedEditError, match="the weights are fresh or all, not 'some'"):
        edited(wide_resnet(10, 1), KeepScale("some"))  # type: ignore[arg-type]


def test_a_weight_that_a_layer_computes_by_itself_is_left() -> None:
    model = nn.Sequential(weight_norm(nn.Linear(6, 6)), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    assert not altered(model, nl.convert(model, "none", torch.randn(8, 6)))


def test_an_encoder_and_decoder_of_stated_structure() -> None:
    """Post-norm: only the stream's start has a norm's scale, and its embeddings are no layers of the structure."""
    model = transformer(vocabulary=11, layers=1, width=8, heads=2, feed_forward=8, dropout=0.0)
    assert not altered(model, nl.convert(model, "none"))


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


@pytest.mark.parametrize("name", NETWORKS)
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


def test_what_a_transformers_norms_did_not_make_irrelevant_stays() -> None:
    model, x = built("vit")
    assert altered(model, nl.convert(model, "none", x[:2])) == {
        "cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"
    }  # fmt: skip


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


def test_a_trained_network_is_left_and_its_plan_says_so() -> None:
    model, x = built("resnetv2")
    with torch.no_grad():
        model.get_submodule("norm").weight[0] += 1e-3
    assert not altered(model, nl.convert(model, "skipinit", x[:2]))
    assert plan_of(model, x)[""].what.startswith("left: norm is trained, and so are the weights")
