"""Decay policies: which parameters shrink, and by how much."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

import normless as nl
from normless.models import resnet, resnet_cifar, transformer
from normless.optim import param_groups
from normless.optim.decay import GROUPS, POLICIES, SHORT, decays_of

RATE, DECAY = 0.1, 0.02
# γ_last and γ_others by name; γ_down is downsample.1, γ_0 is bn1 of the network itself.
DECAYED = re.compile(r"(.*conv\d|.*downsample\.0|fc)\.weight|layer\d\.\d\.bn[12]\.weight")


def resnet18() -> nn.Module:
    """In double precision, biases away from zero too, so that a decay shows."""
    model = torchvision.models.resnet18(num_classes=5).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1)
    return model


@cache
def traced() -> nl.ResidualMap:
    return nl.residual_map(resnet18(), torch.zeros(2, 3, 32, 32, dtype=torch.float64))


def guided(model: nn.Module, kind: type[Optimizer], **options: Any) -> Optimizer:
    groups = param_groups(model, lr=RATE, weight_decay=DECAY, policy="guidelines", residual_map=traced())
    return kind(groups, lr=RATE, **options)


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def zero_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def shrinkage(steps: int, momentum: float) -> float:
    """What is left of a parameter that only decays: p ← p − lr·v with v ← momentum·v + λ·p, from p = 1 and v = 0."""
    left, velocity = 1.0, 0.0
    for _ in range(steps):
        velocity = momentum * velocity + DECAY * left
        left -= RATE * velocity
    return left


def test_the_names_are_those_of_the_guidelines() -> None:
    names = [name for name, _ in resnet18().named_parameters()]
    kept = {name for name in names if not DECAYED.fullmatch(name)}
    downs = {f"layer{stage}.0.downsample.1.weight" for stage in (2, 3, 4)}
    assert kept == {"bn1.weight", *downs, *(name for name in names if name.endswith("bias"))}
    assert len(names) - len(kept) == 21 + 16


@pytest.mark.parametrize(
    ("kind", "options", "momentum"),
    [
        (SGD, {}, 0.0),
        (SGD, {"fused": True}, 0.0),
        (SGD, {"momentum": 0.9}, 0.9),
        (AdamW, {}, 0.0),
        (AdamW, {"foreach": True, "amsgrad": True}, 0.0),
    ],
    ids=["sgd", "fused", "momentum", "adamw", "foreach"],
)
def test_without_gradients_only_decayed_parameters_shrink(
    kind: type[Optimizer], options: dict[str, Any], momentum: float
) -> None:
    steps = 4
    model = resnet18()
    optimizer = guided(model, kind, **options)
    before = values(model)
    zero_gradients(model)
    for _ in range(steps):
        optimizer.step()
    factor = shrinkage(steps, momentum)
    if momentum == 0:
        assert factor == pytest.approx((1 - RATE * DECAY) ** steps, rel=1e-14)
    for name, value in values(model).items():
        if DECAYED.fullmatch(name):
            torch.testing.assert_close(value, before[name] * factor, rtol=1e-13, atol=0)
            assert bool((value.abs() < before[name].abs()).all()), name
        else:
            assert torch.equal(value, before[name]), name


def without_decay(model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """The same network and optimizer, with the same gradients and state, and no decay in any group."""
    twin, stepped = copy.deepcopy((model, optimizer))
    for parameter, own in zip(model.parameters(), twin.parameters(), strict=True):
        assert parameter.grad is not None
        own.grad = parameter.grad.clone()
    for group in stepped.param_groups:
        group["weight_decay"] = 0.0
    return twin, stepped


@pytest.mark.parametrize(
    ("kind", "options"),
    [(SGD, {"momentum": 0.9}), (SGD, {"momentum": 0.9, "nesterov": True}), (AdamW, {})],
    ids=["momentum", "nesterov", "adamw"],
)
def test_in_training_the_decay_adds_its_own_part_and_nothing_else(
    kind: type[Optimizer], options: dict[str, Any]
) -> None:
    model = resnet18().train()
    optimizer = guided(model, kind, **options)
    x, y = torch.randn(6, 3, 32, 32, dtype=torch.float64), torch.arange(6) % 5
    # Nesterov's step looks ahead by the momentum of this gradient, in which the decay is, once more.
    part = RATE * DECAY * (1 + options["momentum"] if "nesterov" in options else 1)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before = values(model)
        twin, stepped = without_decay(model, optimizer)
        optimizer.step()
        stepped.step()
        undecayed = values(twin)
        for name, value in values(model).items():
            assert not torch.equal(undecayed[name], before[name]), name
            if DECAYED.fullmatch(name):
                torch.testing.assert_close(value - undecayed[name], -part * before[name], rtol=1e-9, atol=1e-14)
            else:
                assert torch.equal(value, undecayed[name]), name


def halved(step: int) -> float:
    return 0.5**step


STEPS = 6
SCHEDULERS: dict[str, tuple[Callable[[Optimizer], LRScheduler], Callable[[int], float]]] = {
    "lambda": (lambda optimizer: LambdaLR(optimizer, halved), halved),
    "cosine": (
        lambda optimizer: CosineAnnealingLR(optimizer, STEPS),
        lambda step: (1 + math.cos(math.pi * step / STEPS)) / 2,
    ),
}


def fixup() -> nn.Module:
    model = nl.convert(resnet_cifar(8), "fixup").double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    return model


def scalar_groups(model: nn.Module) -> list[dict[str, Any]]:
    policy = {"weights": True, "scalars": 0.3}
    return param_groups(model, lr=RATE, weight_decay=DECAY, policy=policy, scalar_lr_scale=0.1)


def assert_shrunk(model: nn.Module, before: dict[str, Tensor], multipliers: list[float]) -> None:
    """Weights by Π (1 − lr·mₜ·λ), scalars by the same with a tenth of the rate and their own λ, biases by nothing."""
    for name, value in values(model).items():
        scale, decay = (0.1, 0.3) if value.numel() == 1 else (1.0, DECAY if name.endswith(".weight") else 0.0)
        factor = math.prod(1 - RATE * multiplier * scale * decay for multiplier in multipliers)
        torch.testing.assert_close(value, before[name] * factor, rtol=1e-13, atol=0)


@pytest.mark.parametrize("kind", [SGD, AdamW])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_decay_follows_every_groups_own_rate_under_a_scheduler(name: str, kind: type[Optimizer]) -> None:
    build, multiplier = SCHEDULERS[name]
    model = fixup()
    optimizer = kind(scalar_groups(model), lr=RATE)
    scheduler = build(optimizer)
    before = values(model)
    zero_gradients(model)
    for _ in range(STEPS):
        optimizer.step()
        scheduler.step()
    assert_shrunk(model, before, [multiplier(step) for step in range(STEPS)])


@pytest.mark.parametrize("kind", [SGD, AdamW])
@pytest.mark.parametrize("multipliers", [(0.5, 1.0, 1.0, 0.5, 0.25), (0.1, 0.01, 0.0)])
def test_decay_follows_every_groups_own_rate_that_is_set_before_each_step(
    multipliers: tuple[float, ...], kind: type[Optimizer]
) -> None:
    model = fixup()
    optimizer = kind(scalar_groups(model), lr=RATE)
    before = values(model)
    zero_gradients(model)
    for multiplier in multipliers:
        for group in optimizer.param_groups:
            group["lr"] = RATE * multiplier * group.get("rate_scale", 1.0)
        optimizer.step()
    assert_shrunk(model, before, [*multipliers])


TERMS = [*POLICIES, *GROUPS, *SHORT]


def decayed(model: nn.Module, policy: Any) -> set[str]:
    """The names of the parameters that decay."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups(model, lr=0.1, weight_decay=0.01, policy=policy)
    listed = [id(one) for group in groups for one in group["params"]]
    assert sorted(listed) == sorted(names)
    return {names[id(one)] for group in groups if group["weight_decay"] > 0 for one in group["params"]}


@given(st.lists(st.sampled_from(TERMS), min_size=1, max_size=5))
def test_a_sum_of_terms_decays_what_any_of_them_does(terms: list[str]) -> None:
    alone = [set(decays_of(term, 0.3)) for term in terms]
    together = decays_of("+".join(terms), 0.3)
    assert set(together) == set().union(*alone)
    assert set(together.values()) == {0.3}
    assert set(together) <= set(GROUPS)
    assert together == decays_of(" + ".join(reversed(terms)), 0.3)


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


def test_a_pattern_goes_before_its_group_and_the_last_before_the_others() -> None:
    model = resnet(18, channels=4)
    policy = {"weights": True, "conv1.*": 0.5, "layer?.0.conv1.*": 0.25, "layer4.0.conv1.*": False}
    groups = param_groups(model, lr=0.1, weight_decay=0.01, policy=policy)
    found = {id(one): group["weight_decay"] for group in groups for one in group["params"]}
    assert found[id(model.conv1.weight)] == 0.5
    assert found[id(model.layer1[0].conv1.weight)] == 0.25
    assert found[id(model.layer4[0].conv1.weight)] == 0
    assert found[id(model.layer1[0].conv2.weight)] == 0.01
    with pytest.raises(ValueError, match=r"matches \*attention\*, encoder\.\*, or a later"):
        param_groups(model, lr=0.1, weight_decay=0.1, policy="weights+*attention*+encoder.*")


def test_the_roles_of_a_converted_network() -> None:
    assert decayed(nl.convert(resnet(18, channels=4), "skipinit"), "weights+scalars") == {
        name
        for name, one in nl.convert(resnet(18, channels=4), "skipinit").named_parameters()
        if one.dim() > 1 or one.numel() == 1
    }
