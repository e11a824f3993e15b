"""The census: what it says of whole conversions, and that each of its checks fails where a conversion is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl
from benchmarks.census import networks, stated
from benchmarks.census.examine import CHECKS, examine
from benchmarks.census.networks import Network
from benchmarks.census.operators import count_operators
from normless.models import resnet_cifar

OURS = Network("ours", "resnet_cifar(8)", "randn(2, 3, 8, 8)", ("normless.models",))
INVERTED = "MobileNetV2(inverted_residual_setting=[[1, 8, 1, 1], [2, 8, 3, 1]])"
FOREIGN = Network("torchvision", INVERTED, "randn(2, 3, 16, 16)", ("torchvision.models",))
IMAGES = torch.randn(2, 3, 16, 16)


@pytest.mark.parametrize("network", [OURS, FOREIGN])
def test_whole_conversions_pass_every_check(network: Network) -> None:
    row = examine(network, 0)
    asked = ("built", "mapped", "folded", "skipinit_alpha_1", "skipinit", "fixup", *CHECKS)
    assert {name: getattr(row, name) for name in asked} == dict.fromkeys(asked, "yes")
    assert row.blocks == 3
    assert "native_batch_norm in training" in row.norms_before


def changed(network: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """The network with a change of its output."""
    return Written(lambda own, images: change(own.network(images)), network=network)


def set_multipliers(model: nn.Module, value: float) -> nn.Module:
    for name, parameter in model.named_parameters():
        if name.endswith("multiplier"):
            parameter.data.fill_(value)
    return model


def scale_none(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    next(converted.parameters()).data.mul_(1.001 if scheme.startswith("none") else 1)
    return converted


def drop_block(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    path = nl.residual_map(original, IMAGES).blocks[-1].name
    parent, _, name = path.rpartition(".")
    setattr(converted.get_submodule(parent), name, nn.Identity())
    return converted


def change_original(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    next(original.parameters()).data.add_(1)
    return converted


@pytest.mark.parametrize(
    ("breaking", "column", "said"),
    [
        (
            lambda _, made, scheme: changed(made, lambda y: F.layer_norm(y, y.shape[1:])),
            "no_norms",
            "1 native_layer_norm in evaluation, 1 native",
        ),
        (lambda _, made, scheme: set_multipliers(made, 1e-3 if scheme == "skipinit" else 1), "inert", "with α = 0 "),
        (scale_none, "as_none", "outputs differ by"),
        (lambda _, made, scheme: changed(made, lambda y: y - y.mean(0)), "per_example", "example 0 alone differs"),
        (drop_block, "same_map", "2 blocks, the original has 3"),
        (change_original, "unchanged", "stem.weight and 0 more changed"),
    ],
)
def test_a_broken_conversion_fails_its_check(
    breaking: Callable[..., nn.Module], column: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = nl.convert

    def broken(model: nn.Module, scheme: str, *inputs: Any, **kwargs: Any) -> nn.Module:
        return breaking(model, convert(model, scheme, *inputs, **kwargs), scheme)

    monkeypatch.setattr(nl, "convert", broken)
    # Ours states its map, which a missing block would not change.
    assert getattr(examine(FOREIGN if breaking is drop_block else OURS, 0), column).startswith(said)


@pytest.mark.parametrize(
    ("function", "norms", "statistics"),
    [
        (lambda own, x: F.group_norm(x.clone().mul_(2), 2), 1, 0),
        (lambda own, x: x * (x * x).mean(1, keepdim=True).add(1e-6).rsqrt(), 0, 1),
        (lambda own, x: F.conv1d(x, F.layer_norm(own.weight, (4, 1))), 0, 0),
        (lambda own, x: torch.zeros_like(own.weight[0]).copy_(x[0, :, :1]).var() * x, 0, 1),
    ],
    ids=["group", "by hand", "of a weight", "through memory"],
)
def test_norms_of_activations_are_counted(
    function: Callable[[nn.Module, Tensor], Tensor], norms: int, statistics: int
) -> None:
    network = Written(function, weight=nn.Parameter(torch.ones(4, 4, 1)))
    counted = count_operators(network, (torch.randn(2, 4, 6),), {})
    assert (counted.norms.total(), counted.statistics.total()) == (norms, statistics)


def test_the_tables_name_500_networks_and_statements_are_of_them() -> None:
    listed = [network for package in networks.tables() for network in networks._read(package)]
    assert len({(network.package, network.text, network.inputs) for network in listed}) == len(listed) >= 500
    for package in networks.tables():
        texts = {network.text for network in listed if network.package == package}
        assert {*stated.statements(package)} <= texts


BLOCK: dict[str, Any] = {
    "each": {"i": "0-2"},
    "branch": ["blocks.{i}: conv1 conv2"],
    "last": ["blocks.{i}.norm2"],
}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, []),
        ({"blocks": [{**BLOCK, "each": {"i": "0-1"}}]}, ["blocks.2.conv1"]),
        ({"blocks": [{**BLOCK, "each": {"i": [1, 0, 2]}}]}, ["blocks.0.conv1"]),
        ({"blocks": [{**BLOCK, "skip": ["blocks.{i}.shortcut"]}]}, [f"blocks.{i}.shortcut" for i in range(3)]),
        ({"blocks": [{**BLOCK, "gates": ["blocks.{i}.conv1"]}]}, [f"gates [], stated [blocks.{i}" for i in range(3)]),
        ({"blocks": [{**BLOCK, "last": ["blocks.{i}.norm1"]}]}, [f"blocks.{i}.norm1" for i in range(3)]),
        ({"blocks": [{"branch": ["outer"], "inner": [BLOCK]}]}, ["outer", *3 * ["inside 0 others, stated 1"]]),
        ({"stem": ["other"]}, ["the stem is [stem]"]),
        ({"classifier": ["head"]}, ["the classifier is classifier"]),
        ({"norms": 8}, ["7 norms"]),
        ({"without": ["stem"]}, ["not [stem]"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_differences_of_a_map_from_a_statement_are_named(changes: dict[str, Any], named: list[str]) -> None:
    mapped = nl.residual_map(resnet_cifar(8), torch.zeros(2, 3, 16, 16))
    statement = {"blocks": [BLOCK], "stem": ["stem"], "classifier": ["classifier"], "norms": 7, **changes}
    told = stated.differences(statement, mapped)
    assert len(told) == len(named), told
    assert all(text in sentence for text, sentence in zip(named, told, strict=True)), told
    assert stated.differences(statement, None) == ["the network was not mapped"]
