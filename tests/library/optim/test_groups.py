"""Parameter groups: every parameter once, by its role, and what a policy decays."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch import Tensor, nn

import normless as nl
from normless.models import dense, resnet_cifar, wide_resnet
from normless.nn import ResidualSum
from normless.optim import param_groups
from normless.optim.decay import GROUPS
from normless.residual import BlockStructure, Structure

NETWORKS = {
    "wide": lambda: wide_resnet(10, 1),
    "cifar": lambda: resnet_cifar(8),
    "dense": lambda: dense(2, 8, in_features=192, branch_layers=2),
}
SCHEMES = [
    "batch_norm",
    "group_norm(groups=4)",
    "norm_on_skip",
    "layer_scale",
    "none",
    "skipinit",
    "zeroinit",
    "fixup",
]


def by_name(model: nn.Module, **arguments: Any) -> dict[str, set[str]]:
    """The parameters' names in every group."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups(model, **{"lr": 0.1, "weight_decay": 0.01} | arguments)
    return {group["name"]: {names[id(parameter)] for parameter in group["params"]} for group in groups}


def decayed(model: nn.Module, **arguments: Any) -> set[str]:
    """Names of the groups with weight decay."""
    groups = param_groups(model, **{"lr": 0.1, "weight_decay": 0.01} | arguments)
    assert {group["weight_decay"] for group in groups} <= {0.0, 0.01}
    return {group["name"] for group in groups if group["weight_decay"] == 0.01}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_parameter_is_in_exactly_one_group(network: str, scheme: str) -> None:
    net = nl.convert(NETWORKS[network](), scheme)
    groups = param_groups(net, lr=0.1, weight_decay=0.01)
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(parameter) for parameter in net.parameters()}
    assert all(group["params"] for group in groups)
    order = [GROUPS.index(group["name"]) for group in groups]
    assert order == sorted(set(order))
    assert all(set(group) == {"params", "name", "lr", "rate_scale", "weight_decay"} for group in groups)


def test_roles_of_a_cifar_resnet() -> None:
    found = by_name(resnet_cifar(8))
    assert found["gamma_stem"] == {"norm.weight"}
    assert found["gamma_last"] == {f"blocks.{index}.norm2.weight" for index in range(3)}
    assert found["gamma_other"] == {f"blocks.{index}.norm1.weight" for index in range(3)}
    weights = {"stem.weight", "classifier.weight", *(f"blocks.{i}.conv{j}.weight" for i in range(3) for j in (1, 2))}
    assert found["weights"] == weights
    norms = {"norm.bias", *(f"blocks.{i}.norm{j}.bias" for i in range(3) for j in (1, 2))}
    assert found["biases"] == {"classifier.bias"} | norms
    assert set(found) == {"weights", "gamma_stem", "gamma_last", "gamma_other", "biases"}


def test_norms_that_a_scheme_adds_have_their_roles() -> None:
    skip = by_name(nl.convert(resnet_cifar(8), "norm_on_skip(place=skip_path)"))
    assert skip["gamma_down"] == {f"blocks.{index}.sum.norm_skip.weight" for index in range(3)}
    final = by_name(nl.convert(resnet_cifar(8), "only_final_norm"))
    assert final["gamma_other"] == {"classifier.before.weight"}
    ghost, plain = by_name(nl.convert(wide_resnet(10, 1), "ghost_batch_norm")), by_name(wide_resnet(10, 1))
    assert ghost == plain


@pytest.mark.parametrize("network", ["wide", "cifar"])
def test_scalars_are_those_a_scheme_added(network: str) -> None:
    net = nl.convert(NETWORKS[network](), "fixup")
    assert by_name(net)["scalars"] == {name for name, p in net.named_parameters() if p.numel() == 1}
    assert by_name(net)["biases"] == {"classifier.bias"}
    channels = nl.convert(NETWORKS[network](), "zeroinit")
    assert by_name(channels)["biases"] == {name for name, _ in channels.named_parameters() if name.endswith(".bias")}
    scaled = nl.convert(NETWORKS[network](), "layer_scale")
    kind = "conv2.layer_scale" if network == "wide" else "sum.multiplier"
    assert by_name(scaled)["layer_scale"] == {f"blocks.{index}.{kind}" for index in range(3)}
    assert "scalars" not in by_name(scaled)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # The columns of table 2: weights alone, and with each role of γ.
        ({"weights": True}, {"weights": 0.01}),
        ({"weights": True, "last": True}, {"weights": 0.01, "gamma_last": 0.01}),
        ({"weights": True, "down": True}, {"weights": 0.01, "gamma_down": 0.01}),
        ({"weights": True, "other": True}, {"weights": 0.01, "gamma_other": 0.01}),
        # A strength of its own, as for figure 3.
        ({"weights": True, "down": 0.3, "gamma_last": 0}, {"weights": 0.01, "gamma_down": 0.3}),
        ({"weights": 0.5, "stem": True, "biases": False, "scalars": 1}, {"weights": 0.5}),
        ({}, {}),
    ],
)
def test_a_policy_by_role(policy: dict[str, bool | float], expected: dict[str, float]) -> None:
    groups = param_groups(wide_resnet(16, 1), lr=0.1, weight_decay=0.01, policy=policy)
    decays = {group["name"]: group["weight_decay"] for group in groups}
    assert set(decays) == {"weights", "gamma_last", "gamma_down", "gamma_other", "biases"}
    assert {name: decay for name, decay in decays.items() if decay} == expected
    assert all(type(decay) is float for decay in decays.values())


@pytest.mark.parametrize(
    "policy",
    ["guidelines", "all", "weights", {"gamma_stem": True, "layer_scale": True}],
    ids=["guidelines", "all", "weights", "own"],
)
def test_only_decayed_parameters_shrink_under_zero_gradients(policy: Any) -> None:
    net = nl.convert(resnet_cifar(8), "layer_scale(init=0.5)")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    expected = decayed(net, policy=policy)
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    optimizer = torch.optim.SGD(param_groups(net, lr=0.1, weight_decay=0.01, policy=policy), lr=123.0)
    optimizer.step()
    current = dict(net.named_parameters())
    assert expected
    for group, names in by_name(net).items():
        factor = 1 - 0.1 * 0.01 if group in expected else 1.0
        for name in names:
            torch.testing.assert_close(current[name].detach(), before[name].detach() * factor, rtol=1e-6, atol=0)


def test_scalars_take_their_own_rate() -> None:
    net = nl.convert(resnet_cifar(8), "fixup")
    groups = param_groups(net, lr=0.2, weight_decay=0.01, scalar_lr_scale=0.1)
    rates = {group["name"]: (group["lr"], group["rate_scale"]) for group in groups}
    assert rates == {"weights": (0.2, 1.0), "biases": (0.2, 1.0), "scalars": (pytest.approx(0.02), 0.1)}
    optimizer = torch.optim.SGD(groups, lr=0.2)
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    optimizer.step()
    for name, parameter in net.named_parameters():
        step = 0.02 if parameter.numel() == 1 else 0.2
        torch.testing.assert_close(before[name] - parameter, torch.full_like(parameter, step), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
        lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    ],
    ids=["cosine", "steps", "lambda"],
)
def test_schedulers_keep_the_proportion(schedule: Any) -> None:
    net = nl.convert(wide_resnet(10, 1), "fixup")
    optimizer = torch.optim.SGD(param_groups(net, lr=0.2, weight_decay=0.0, scalar_lr_scale=0.1), lr=0.2)
    scheduler = schedule(optimizer)
    seen = set()
    for _ in range(4):
        optimizer.step()
        scheduler.step()
        base = next(group["lr"] for group in optimizer.param_groups if group["name"] == "weights")
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(base * group["rate_scale"])
        seen.add(base)
    assert len(seen) > 1


def test_frozen_parameters_are_left_out() -> None:
    net = resnet_cifar(8)
    net.stem.weight.requires_grad_(False)
    net.norm.weight.requires_grad_(False)
    found = by_name(net)
    assert "gamma_stem" not in found
    assert "stem.weight" not in found["weights"]


class Tied(nn.Module):
    """Two layers of one weight, a shared scalar, a vector of its own, an embedding and a PReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.position = nn.Parameter(torch.zeros(5))
        self.block = nn.Module()
        self.block.norm = nn.LayerNorm(5)
        self.block.one, self.block.two = nn.Linear(5, 5), nn.Linear(5, 5)
        self.block.two.weight = self.block.one.weight
        self.block.sum = ResidualSum()
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.position
        return self.head(self.block.sum(h, self.block.two(self.block.one(self.block.norm(h)))))

    def residual_structure(self) -> Structure:
        return Structure([], [("block", BlockStructure(branch=["norm", "one", "two"]))], ["head"])


def test_tied_parameters_are_listed_once() -> None:
    found = by_name(Tied())
    assert found == {
        "weights": {"embedding.weight", "block.one.weight"},
        "gamma_last": {"block.norm.weight"},
        "biases": {"block.norm.bias", "block.one.bias", "block.two.bias"},
        "rest": {"position"},
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"policy": "everything"},
            "There is no decay policy 'everything'; the policies are guidelines, all, weights",
        ),
        (
            {"policy": {"gamma": True}},
            "There is no parameter group gamma; the groups are weights, hidden, embedding, head, gamma_last",
        ),
        ({"policy": {"gamma": True}}, "and last, down, stem, other for those of γ"),
        ({"policy": {"last": True, "gamma_last": 0.1}}, "names the group gamma_last twice"),
        ({"policy": {"down": -0.1}}, r"of 0 or more, got -0\.1 for the group gamma_down"),
        ({"policy": {"down": float("nan")}}, "got nan for the group gamma_down"),
        ({"lr": -0.1}, r"of 0 or more, got lr=-0\.1"),
        ({"weight_decay": -1e-4}, r"of 0 or more, got .*weight_decay=-0\.0001"),
        ({"scalar_lr_scale": -1.0}, r"of 0 or more, got .*scalar_lr_scale=-1\.0"),
        ({"lr": float("nan")}, "lr=nan"),
    ],
)
def test_errors_say_what_came(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        param_groups(resnet_cifar(8), **{"lr": 0.1, "weight_decay": 0.01} | arguments)


def test_timms_factories_keep_the_rates_of_the_groups() -> None:
    net = nl.convert(resnet_cifar(8), "fixup")
    groups = nl.param_groups(net, lr=0.1, weight_decay=5e-4, scalar_lr_scale=0.1)
    optimizer = create_optimizer_v2(groups, opt="sgd", lr=0.1)
    scheduler, _ = create_scheduler_v2(optimizer, "cosine", num_epochs=10, warmup_epochs=2)
    for epoch in (2, 5, 9):
        scheduler.step(epoch)
        rates = {group["name"]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups}
        expected = 0.05 * (1 + math.cos(math.pi * epoch / 10))
        assert rates["weights"] == pytest.approx((expected, 5e-4))
        assert rates["scalars"] == pytest.approx((0.1 * expected, 0))
