"""Parameter groups: every parameter once, by its role, and what policies, terms and patterns decay."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

import normless as nl
from normless.models import resnet, resnet_cifar, transformer, wide_resnet
from normless.optim import param_groups


def by_name(model: nn.Module) -> dict[str, set[str]]:
    """The parameters' names in every group."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups(model, lr=0.1, weight_decay=0.01)
    return {group["name"]: {names[id(parameter)] for parameter in group["params"]} for group in groups}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize(
    ("scheme", "policy", "decays"),
    [
        ("layer_scale(init=0.5)", "guidelines", {"weights": 0.02, "gamma_last": 0.02, "gamma_other": 0.02}),
        ("fixup", {"weights": True, "scalars": 0.3}, {"weights": 0.02, "scalars": 0.3}),
    ],
)
def test_without_gradients_parameters_shrink_by_the_rate_and_the_decay_of_their_group(
    scheme: str, policy: Any, decays: dict[str, float], kind: Any
) -> None:
    net = nl.convert(resnet_cifar(8), scheme).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    groups = param_groups(net, lr=0.1, weight_decay=0.02, policy=policy, scalar_lr_scale=0.1)
    optimizer = kind(groups, lr=123.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    for group, names in by_name(net).items():
        rate = 0.1 * (0.1 if group == "scalars" else 1.0)
        factor = math.prod(1 - rate * 0.5**step * decays.get(group, 0.0) for step in range(3))
        for name in names:
            torch.testing.assert_close(net.get_parameter(name).detach(), before[name] * factor, rtol=1e-13, atol=0)


def decayed(model: nn.Module, policy: Any) -> set[str]:
    """The names of the parameters that decay."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups(model, lr=0.1, weight_decay=0.01, policy=policy)
    listed = [id(one) for group in groups for one in group["params"]]
    assert sorted(listed) == sorted(names)
    return {names[id(one)] for group in groups if group["weight_decay"] > 0 for one in group["params"]}


def test_table_2_of_kim_et_al_column_by_column() -> None:
    """Weights, and weights with the γ of one role: the union is a partition of all γ, by module name on ResNet-18."""
    model = resnet(18, channels=4)
    weights = {name for name, one in model.named_parameters() if one.dim() > 1}
    assert decayed(model, "weights") == weights
    columns = {role: decayed(model, f"weights+{role}") - weights for role in ("last", "down", "stem", "other")}
    assert columns["stem"] == {"bn1.weight"}
    assert columns["down"] == {f"layer{stage}.0.downsample.1.weight" for stage in (2, 3, 4)}
    assert columns["last"] == {f"layer{stage}.{index}.bn2.weight" for stage in (1, 2, 3, 4) for index in (0, 1)}
    assert columns["other"] == {f"layer{stage}.{index}.bn1.weight" for stage in (1, 2, 3, 4) for index in (0, 1)}
    for one, other in itertools.combinations(columns.values(), 2):
        assert not one & other
    assert len(set().union(*columns.values())) == 20
    assert decayed(model, "weights+last+other") == decayed(model, "guidelines")


def test_a_pattern_takes_the_norms_of_one_kind_of_block() -> None:
    """γ_1 and γ_2 of a transformer block are both `last`: their names tell them apart."""
    model = transformer(30, layers=2, width=8, heads=2, feed_forward=8, norm="pre")
    weights = decayed(model, "weights")
    first = decayed(model, "weights+*attention.norm.weight") - weights
    second = decayed(model, "weights+*feed_forward.norm.weight") - weights
    assert len(first) == 2 + 4
    assert len(second) == 4
    assert first | second == decayed(model, "weights+last") - weights
    assert not first & second
    groups = param_groups(model, lr=0.1, weight_decay=0.01, policy="weights+*feed_forward.norm.weight")
    named = {group["name"]: (len(group["params"]), group["weight_decay"]) for group in groups}
    assert named["gamma_last"] == (6, 0.0)
    assert named["gamma_last:*feed_forward.norm.weight"] == (4, 0.01)


def test_parameters_that_a_scheme_adds_have_their_roles() -> None:
    skip = by_name(nl.convert(resnet_cifar(8), "norm_on_skip(place=skip_path)"))
    assert skip["gamma_down"] == {f"blocks.{index}.sum.norm_skip.weight" for index in range(3)}
    final = by_name(nl.convert(resnet_cifar(8), "only_final_norm"))
    assert final["gamma_other"] == {"classifier.before.weight"}
    assert by_name(nl.convert(wide_resnet(10, 1), "ghost_batch_norm")) == by_name(wide_resnet(10, 1))
    fixed = nl.convert(resnet_cifar(8), "fixup")
    assert by_name(fixed)["scalars"] == {name for name, p in fixed.named_parameters() if p.numel() == 1}
    assert by_name(fixed)["biases"] == {"classifier.bias"}
    channels = nl.convert(wide_resnet(10, 1), "zeroinit")
    assert by_name(channels)["biases"] == {name for name, _ in channels.named_parameters() if name.endswith(".bias")}
    for model, kind in ((wide_resnet(10, 1), "conv2.layer_scale"), (resnet_cifar(8), "sum.multiplier")):
        scaled = by_name(nl.convert(model, "layer_scale"))
        assert scaled["layer_scale"] == {f"blocks.{index}.{kind}" for index in range(3)}
        assert "scalars" not in scaled
