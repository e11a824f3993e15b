"""Branches scaled with depth: the constants of the papers, rates and ε in parameter groups, steps at any depth."""

from __future__ import annotations

import pickle
from copy import deepcopy
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from edit_helpers import added, altered, edited, images, removed
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.edits import ScaleBranches
from normless.models import wide_resnet
from normless.nn import ResidualSum
from normless.residual.declared import BlockStructure, Structure

WIDTH = 256


class Block(nn.Module):
    """x + W relu(x), the one-layer block of the paper."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.linear, self.sum = nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False), ResidualSum()
        nn.init.normal_(self.linear.weight, std=sqrt(2 / WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.sum(x, self.linear(self.relu(x)))


class Residual(nn.Module):
    """L such blocks between an embedding and a readout."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1, bias=False)
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


class Stated(Residual):
    """It says what its structure is, so that no trace of 64 blocks takes its time."""

    def residual_structure(self) -> Structure:
        blocks = [(f"blocks.{index}", BlockStructure(["relu", "linear"])) for index in range(len(self.blocks))]
        return Structure(["stem"], blocks, ["head"])


X, TARGET = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1)), torch.ones(8, 1)


def converted(depth: int, scheme: str) -> nn.Module:
    torch.manual_seed(depth)
    return nl.convert(Stated(depth), scheme)


def change(net: nn.Module, groups: list[dict[str, Any]], kind: type[torch.optim.Optimizer]) -> float:
    """The root mean square change of the outputs by one step of the parameters on the branches alone."""
    before = net(X).detach()
    optimizer = kind(groups)  # type: ignore[call-arg]
    F.mse_loss(net(X), TARGET).backward()
    optimizer.step()
    return (net(X) - before).square().mean().sqrt().item()


def branches_of(net: nn.Module, lr: float) -> list[dict[str, Any]]:
    """The groups of the network without the parameters outside the blocks."""
    inside = {id(parameter) for parameter in net.get_submodule("blocks").parameters()}
    groups = nl.param_groups(net, lr=lr, weight_decay=0.0)
    return [group | {"params": [one for one in group["params"] if id(one) in inside]} for group in groups]


@pytest.mark.parametrize(
    ("scheme", "kind", "lr"),
    [
        ("depth_mup", torch.optim.Adam, 1e-4),
        ("depth_mup(optimizer=sgd)", torch.optim.SGD, 1e-2),
        ("completep", torch.optim.Adam, 1e-4),
        ("completep(alpha=0.75)", torch.optim.Adam, 1e-4),
    ],
)
def test_a_first_step_changes_the_output_as_much_at_any_depth(
    scheme: str, kind: type[torch.optim.Optimizer], lr: float
) -> None:
    changes = []
    for depth in (4, 16, 64):
        net = converted(depth, scheme)
        changes.append(change(net, branches_of(net, lr), kind))
    assert max(changes) < 1.7 * min(changes)


def test_without_the_rates_or_without_the_factor_it_grows_with_depth() -> None:
    without_rates, plain = [], []
    for depth in (4, 16, 64):
        net = converted(depth, "depth_mup")
        same = [{"params": list(net.get_submodule("blocks").parameters()), "lr": 1e-4}]
        without_rates.append(change(net, same, torch.optim.Adam))
        net = converted(depth, "as_written")
        plain.append(change(net, branches_of(net, 1e-6), torch.optim.Adam))
    # Σ of L steps of size 1/√L.
    assert without_rates[2] / without_rates[0] == pytest.approx(sqrt(64 / 4), rel=0.25)
    assert plain[1] > 4 * plain[0]
    assert plain[2] > 100 * plain[1]


@pytest.mark.parametrize(
    ("scheme", "factor", "rate", "epsilon"),
    [
        ("depth_mup", 6**-0.5, 6**-0.5, 1.0),
        ("depth_mup(optimizer=sgd)", 6**-0.5, 1.0, 1.0),
        ("completep", 1 / 6, 1.0, 1 / 6),
        ("completep(alpha=0.75, base_depth=2)", 3**-0.75, 3**-0.25, 3**-0.75),
        ("as_written + ScaleBranches(exponent=0.75, optimizer='sgd')", 6**-0.75, 6**0.5, 1.0),
    ],
)
def test_the_constants_and_what_they_are_applied_to(scheme: str, factor: float, rate: float, epsilon: float) -> None:
    model = wide_resnet(16, 1)
    net = nl.convert(model, scheme, images())
    assert not added(model, net) | removed(model, net) | altered(model, net)
    for block in net.blocks:
        assert block.sum.branch_factor == pytest.approx(factor)
        x = torch.randn(4, block.conv1.in_channels, 8, 8)
        skip = block.shortcut(torch.relu(block.norm1(x))) if block.projects else x
        branch = block.conv2(torch.relu(block.norm2(block.conv1(torch.relu(block.norm1(x))))))
        torch.testing.assert_close(block(x), skip + factor * branch, rtol=1e-4, atol=1e-5)
    groups = nl.param_groups(net, lr=0.1, weight_decay=0.01, eps=1e-6)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    seen: list[str] = []
    for group in groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            seen.append(name)
            # What a projecting block reads before its fork belongs to the skip path as well.
            first = name.split(".")[1] if name.startswith("blocks.") else ""
            outside = not first or "shortcut" in name or (first in ("2", "4") and "norm1" in name)
            scaled = (1.0, 1.0) if outside else (rate, epsilon)
            assert group["lr"] == pytest.approx(0.1 * scaled[0]), name
            assert group["rate_scale"] == pytest.approx(scaled[0])
            assert group.get("eps", 1e-6) == pytest.approx(1e-6 * scaled[1])
            assert ("branches" in group["name"]) == (scaled != (1.0, 1.0)), name
    assert sorted(seen) == sorted(names.values())
    decays = {group["name"]: group["weight_decay"] for group in nl.param_groups(model, lr=0.1, weight_decay=0.01)}
    assert all(group["weight_decay"] == decays[group["name"].partition(":")[0]] for group in groups)


def test_patterns_and_scalars_keep_their_meaning_on_scaled_branches() -> None:
    scheme = "skipinit(alpha=1) + ScaleBranches()"
    net = nl.convert(wide_resnet(10, 1), scheme, images())
    groups = nl.param_groups(net, lr=0.1, weight_decay=0.01, policy="weights+*.conv2.weight", scalar_lr_scale=0.1)
    by_name = {group["name"]: group for group in groups}
    assert by_name["scalars:branches"]["lr"] == pytest.approx(0.1 * 0.1 * 3**-0.5)
    assert len(by_name["weights:*.conv2.weight:branches"]["params"]) == 3
    assert by_name["weights:*.conv2.weight:branches"]["weight_decay"] == 0.01
    assert by_name["weights"]["lr"] == 0.1


class Attention(nn.Module):
    """With a table that only an addition inside the attention reads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.table = nn.Parameter(torch.randn(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.mT + self.table).softmax(-1) @ v)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.attentions = nn.ModuleList(Attention() for _ in range(2))
        self.positions, self.head = nn.Parameter(torch.randn(1, 5, 8)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions
        for norm, attention in zip(self.norms, self.attentions, strict=False):
            x = x + attention(norm(x))
        return self.head(self.norms[2](x).mean(1))


def test_a_parameter_that_no_layer_reads_goes_with_the_module_around_it() -> None:
    net = nl.convert(Tokens(), "depth_mup", torch.randn(2, 5, 8))
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    groups = nl.param_groups(net, lr=1.0, weight_decay=0.0)
    scaled = {names[id(one)] for group in groups if group["lr"] < 1 for one in group["params"]}
    assert scaled == {name for name in names.values() if name.startswith(("attentions", "norms.0", "norms.1"))}


def test_rates_survive_copies_wrappers_and_files(tmp_path: Path) -> None:
    model, x = Tokens(), torch.randn(2, 5, 8)
    net = nl.convert(model, "completep(alpha=0.5, base_depth=0.5)", x).eval()

    def rates(one: nn.Module) -> list[tuple[Any, ...]]:
        groups = nl.param_groups(one, lr=0.1, weight_decay=0.0)
        return [(group["name"], group["lr"], group.get("eps"), len(group["params"])) for group in groups]

    expected = rates(net)
    assert {rate for _, rate, _, _ in expected} == {0.1, 0.05}
    nl.save(net, tmp_path, example_inputs=x)
    loaded = nl.load(tmp_path, model)
    for copy in (deepcopy(net), pickle.loads(pickle.dumps(net)), loaded):
        assert rates(copy) == expected
        assert torch.equal(copy(x), net(x))
    assert rates(torch.compile(net)) == expected  # type: ignore[arg-type]
    assert "branch_factor=0.5, branch_rate=0.5, branch_epsilon=0.5" in str(loaded)
    with pytest.raises(ValueError, match="map is not this network's"):
        nl.param_groups(net, lr=0.1, weight_decay=0.0, residual_map=nl.residual_map(model, x))


@pytest.mark.parametrize("traced", [False, True])
def test_the_moments_are_predicted_with_the_factor(traced: bool) -> None:
    """Of branches with independent weights the second moments add up, each times 1/L."""
    torch.manual_seed(0)
    x = torch.randn(64, WIDTH if traced else 3, *(() if traced else (8, 8)))
    net: nn.Module = Residual(8) if traced else wide_resnet(16, 4)
    table = nl.probe(nl.convert(net, "depth_mup", x), x, ["signal"]).signal
    for side in ("skip", "branch", "sum"):
        measured, predicted = table[f"{side}_second_moment"], table[f"predicted_{side}_second_moment"]
        assert measured.to_numpy() == pytest.approx(predicted.to_numpy(), rel=0.1), side
    if traced:
        growth = table["predicted_sum_second_moment"] / table["predicted_skip_second_moment"]
        assert growth.to_numpy() == pytest.approx([1 + 1 / 8] * 8, rel=0.1)


@pytest.mark.parametrize(
    "edit",
    [
        ScaleBranches(exponent=0.4),
        ScaleBranches(exponent=1.1),
        ScaleBranches(base_depth=0),
        ScaleBranches(optimizer="lion"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_refused(edit: ScaleBranches) -> None:
    with pytest.raises(nl.UnsupportedEditError, match=r"exponent of 1/2 to 1.* base depth .*adam or sgd"):
        edited(wide_resnet(10, 1), edit)
