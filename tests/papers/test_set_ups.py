"""The set-ups of the texts: what the papers' networks start from, where they have biases, what decays."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any, cast

import pytest
import torch
import torchvision
from fake_laboratory import FakeLaboratory, RequestedError
from torch import nn

from normless import convert, param_groups
from normless.models.spec import build_model
from normless_lab.sweeps import Laboratory
from normless_papers.artefact import Context, artefact_of, artefacts
from normless_papers.experiments.de_smith import METHODS, RESNET_V1, RESNET_V2, built_wide_resnet, wide_resnet_text
from normless_papers.published import published

DE_SMITH = ("skipinit/", "zeroinit/")
# What an artefact takes for its measurements, made small where they come before its runs.
QUICK: dict[str, dict[str, Any]] = {
    "zeroinit/zeroinit": {"depth": 10, "draws": 20},
    "skipinit/skipinit": {"depth": 10},
    "zeroinit/l2-dominates-initial-loss": {"depths": (10, 16), "images": 2, "draws": 1},
    "skipinit/scalar-bias-v1": {"side": 32},
    "fixup/sqrt2-scaling": {"blocks": 2, "width": 20, "draws": 2, "depth": 10, "images": 4},
    "fixup/lsuv": {"depth": 10, "images": 8},
}


def asked(name: str, context: Context) -> list[dict[str, Any]]:
    """The configurations of an artefact's first runs at the smallest budget, none if it trains nothing."""
    settings = {**artefact_of(name).settings["smoke"], **QUICK.get(name, {})}
    lab = FakeLaboratory()
    with suppress(RequestedError):
        artefact_of(name).function(replace(context, lab=cast(Laboratory, lab)), **settings)
    return [config.to_dict() for config in lab.configs]


def trained_by(*prefixes: str) -> list[str]:
    return [
        name
        for name in artefacts()
        if name.startswith(prefixes)
        and (published()[name].kind == "training" or name in QUICK)
        # It takes steps on images of its own.
        and name != "zeroinit/wallclock"
    ]


def layers(network: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    return {name: module for name, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}


def assert_fan_in(network: nn.Module) -> None:
    """Second moment 2/fan-in within five standard errors, in every layer and over all of them together."""
    total = count = 0.0
    for path, layer in layers(network).items():
        fan_in, size = prod(layer.weight.shape[1:]), layer.weight.numel()
        ratio = layer.weight.detach().double().square().mean().item() * fan_in / 2
        assert abs(ratio - 1) < 5 * (2 / size) ** 0.5, path
        total, count = total + ratio * size, count + size
    assert abs(total / count - 1) < 5 * (2 / count) ** 0.5


@pytest.mark.parametrize("name", trained_by(*DE_SMITH))
def test_de_and_smith_train_from_fan_in_without_a_classifiers_bias_and_decay_weights(
    name: str, context: Context
) -> None:
    configs = asked(name, context)
    assert configs
    for config in configs:
        assert config["decay_policy"] == "weights"
        if "wide_resnet" in config["model"]:
            depth, width = (int(config["model"].partition(f"{key}=")[2].split(",")[0]) for key in ("depth", "width"))
            assert config["model"] == wide_resnet_text(depth, width)
        else:
            # Smaller budgets have fewer channels.
            whole = re.sub(r", channels=\d+", "", config["model"])
            assert whole in (RESNET_V1, RESNET_V2)


@pytest.mark.parametrize("name", trained_by("fixup/", "understanding-bn/"))
def test_fixup_and_bjorck_decay_everything_and_fixup_starts_from_fan_out(name: str, context: Context) -> None:
    configs = asked(name, context)
    assert configs
    for config in configs:
        assert config["decay_policy"] == "all"
        assert "he_fan_in" not in config["model"]
        if "wide_resnet" in config["model"]:
            assert config["model"].endswith(", initialization=None)")


@pytest.mark.parametrize("text", [wide_resnet_text(16, 4), RESNET_V1, RESNET_V2])
def test_the_texts_build_networks_from_fan_in(text: str) -> None:
    torch.manual_seed(0)
    assert_fan_in(build_model(text, classes=200, image_shape=(3, 32, 32)))


WITH_BIASES = {"biases", "biases_and_dropout", "zeroinit", "zeroinit_without_l2", "regularized_skipinit"}


@pytest.mark.parametrize("method", METHODS)
def test_biases_are_on_every_layer_or_on_none(method: str) -> None:
    """ZeroInit, table 1 and section 4: "biases to each convolution and the classification layer", zero."""
    original = built_wide_resnet(16, 1)
    network = convert(original, METHODS[method]["scheme"])
    held = {path: dict(network.get_submodule(path).named_parameters()).get("bias") for path in layers(original)}
    if method not in WITH_BIASES:
        assert set(held.values()) == {None}
        return
    for path, bias in held.items():
        assert bias is not None, path
        assert bias.shape == (original.get_submodule(path).weight.shape[0],)
        assert not bias.any()
    added = sum(module.weight.shape[0] for module in layers(original).values())
    multipliers = sum(
        parameter.numel() for name, parameter in network.named_parameters() if name.endswith("multiplier")
    )
    convolved = sum(module.weight.numel() for module in layers(original).values())
    assert sum(parameter.numel() for parameter in network.parameters()) == convolved + added + multipliers


@pytest.mark.parametrize("scheme", ["batch_norm", "skipinit", "zeroinit", "fixup"])
def test_l2_is_on_matrices_and_kernels_alone(scheme: str) -> None:
    """`regularizers["w"]`: every parameter of two or more dimensions decays, no bias, scalar, γ or β does."""
    network = convert(built_wide_resnet(10, 1), scheme)
    settings = artefact_of("skipinit/table-1").settings["paper"]["effort"].settings
    groups = param_groups(network, lr=0.1, weight_decay=settings["weight_decay"], policy=settings["decay_policy"])
    decays = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    assert len(decays) == len(list(network.parameters()))
    for name, parameter in network.named_parameters():
        assert decays[id(parameter)] == (5e-4 if parameter.dim() > 1 else 0.0), name


def test_resnet_v1_has_the_originals_strides_and_no_zero_gamma() -> None:
    network, theirs = build_model(RESNET_V1), torchvision.models.resnet50()
    for stage in (theirs.layer2, theirs.layer3, theirs.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    strides = {name: module.stride for name, module in theirs.named_modules() if isinstance(module, nn.Conv2d)}
    assert {
        name: module.stride for name, module in network.named_modules() if isinstance(module, nn.Conv2d)
    } == strides
    gammas = [module.weight for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(gammas) == 53
    assert all((gamma == 1).all() for gamma in gammas)
