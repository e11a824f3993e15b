"""Kim et al.'s four groups of γ (figures 1, 2 and 4), and which of them common practices decay (table 1)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

from normless.models import build_model
from normless.optim import SHORT, param_groups
from normless.residual import ResidualMap, residual_map
from normless_lab.plots import blocks_on_trunk
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Data, NetworkName
from normless_papers.claims import Claim, below, check
from normless_papers.networks.seeded_inputs import seeded
from normless_papers.published import published_as

# The paper's name of each role.
GAMMAS = {"last": "gamma_last", "down": "gamma_down", "stem": "gamma_0", "other": "gamma_others"}

DECAY = 0.01


def _partition_checks(counts: Mapping[str, float]) -> list[Claim]:
    """Check the number of γ by group, and the effect of a group's decay on gradients `inside` and `outside` it."""
    each = {name: counts[name] for name in ("networks", "gammas", "ungrouped", "repeated")}
    complete = counts["gammas"] > 0 == counts["ungrouped"] == counts["repeated"]
    by_place = "Every γ is in the group that the block diagrams assign to its place in the code."
    inside = "A group's decay adds λγ to the gradients of that group, to 10⁻¹²."
    outside, change = "It adds nothing to any other parameter's gradient, b and β included.", counts["outside"]
    return [
        check("Every γ of every network is in exactly one group.", complete, **each),
        check(by_place, counts["elsewhere"] == 0, elsewhere=counts["elsewhere"]),
        below(inside, counts["inside"], 1e-12),
        check(outside, change == 0, largest_change=change),
    ]


@artefact("gamma/parameter-groups", basis="formula", checks=_partition_checks)
def partition(context: Context, *, models: NetworkName[Sequence[str]], side: Data[int]) -> Evidence:
    rows, leaks, maps = [], [], []
    counts = Counter[str]()
    for text in models:
        network, found, images = grouped_network(context, text, side)
        norms = [path for path, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)]
        by_name = {f"{path}.weight": _role_by_name(network, path) for path in norms}
        members = grouped_gammas(network, found)
        by_map, places = dict(members), Counter(name for name, _ in members)
        counts["ungrouped"] += sum(name not in places for name in by_name)
        counts["repeated"] += sum(count - 1 for count in places.values())
        counts["elsewhere"] += sum(by_map.get(name) not in (None, role) for name, role in by_name.items())
        network.zero_grad()
        loss = F.cross_entropy(network.train()(images), torch.arange(len(images)) % 10)
        loss.backward()  # type: ignore[no-untyped-call]
        leaks += [_leak(network, found, by_map, role) for role in GAMMAS if role in by_map.values()]
        sizes = Counter(by_map.values())
        about: dict[str, Any] = {"model": text, "batch_norms": len(by_name)}
        rows.append(about | {GAMMAS[role]: sizes[role] for role in GAMMAS} | {"in_one_group": len(by_map)})
        maps.append(found)
    table = pd.DataFrame(rows)
    largest = pd.DataFrame(leaks).max()
    return Evidence(
        measured=table,
        facts={"networks": len(table), "gammas": int(table["batch_norms"].sum()), **counts, **largest},
        setup={
            "networks": list(models),
            "inputs": f"8 random images of {side}×{side}",
            "decay": DECAY,
            "optimizer": "torch.optim.SGD",
        },
        draw=lambda: blocks_on_trunk(maps[0]),
    )


def grouped_network(context: Context, text: str, side: int) -> tuple[nn.Module, ResidualMap, torch.Tensor]:
    """Build a network in float64 with perturbed vectors; return it, its map, and random images."""
    with seeded(context.seed):
        images = torch.randn(8, 3, side, side)
        network = build_model(text, classes=10, image_shape=(3, side, side))
        found = residual_map(network, images)
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.rand_like(parameter))
    return network.double(), found, images.double()


def grouped_gammas(network: nn.Module, found: ResidualMap) -> list[tuple[str, str]]:
    """Return name and role of each γ in the optimizer's groups, once for every group that has it."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    groups = param_groups(network, lr=1.0, weight_decay=0.0, residual_map=found)
    long = {name: role for role, name in SHORT.items()}
    return [
        (names[id(gamma)], long[group["name"]])
        for group in groups
        if group["name"] in long
        for gamma in group["params"]
    ]


def _role_by_name(network: nn.Module, path: str) -> str:
    """Derive the role of a batch norm's γ from the module's name, as figures 1, 2 and 4 wire the blocks."""
    parent, _, name = path.rpartition(".")
    if not re.search(r"(layer\d|blocks)\.", path):
        return "stem" if name == "bn1" else "other"
    if "downsample" in path:
        return "down"
    block = network.get_submodule(parent)
    numbers = [int(child[-1]) for child, _ in block.named_children() if re.fullmatch(r"(bn|norm)\d", child)]
    projects = isinstance(getattr(block, "shortcut", None), nn.Conv2d)
    if int(name[-1]) == max(numbers):
        return "last"
    return "down" if projects and name == "norm1" else "other"


def _step(network: nn.Module, found: ResidualMap, policy: str | Mapping[str, bool]) -> dict[str, torch.Tensor]:
    """Return the change of every parameter in a step of SGD at rate 1, and undo the step."""
    start = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    groups = param_groups(network, lr=1.0, weight_decay=DECAY, policy=policy, residual_map=found)
    torch.optim.SGD(groups, lr=1.0).step()
    steps = {name: start[name] - parameter.detach() for name, parameter in network.named_parameters()}
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(start[name])
    return steps


def _leak(network: nn.Module, found: ResidualMap, by_map: Mapping[str, str], role: str) -> dict[str, float]:
    """Return how far the decay of one group changes SGD's steps from λγ inside the group, and from 0 outside."""
    without, decayed = (_step(network, found, policy) for policy in ({}, {role: True}))
    members = {name for name, known in by_map.items() if known == role}
    added = {name: decayed[name] - without[name] for name in without}
    gammas = {name: network.get_parameter(name).detach() for name in members}
    inside = max(float((added[name] - DECAY * gamma).abs().max()) for name, gamma in gammas.items())
    outside = max(float(change.abs().max()) for name, change in added.items() if name not in members)
    return {"inside": inside, "outside": outside}


POLICIES = {"tensorflow": "weights", "pytorch": "all", "guidelines": "guidelines"}

# The words of table 1 for what is decayed and what is not.
APPLIED = {True: "applied", False: "not applied"}
PRINTED = {"applied": True, "applicable": True, "rarely applied": False, "inapplicable": False}


def _table_1_checks(table: pd.DataFrame) -> list[Claim]:
    printed = {row["parameter"]: row for row in published_as("gamma/table-1").rows}
    applied = table.set_index("parameter")
    checks = []
    for preset, policy in POLICIES.items():
        agree = [APPLIED[PRINTED[row[preset]]] == applied.loc[kind, preset] for kind, row in printed.items()]
        claim = f"The policy {policy!r} decays exactly what column {preset} of the table says."
        checks.append(check(claim, all(agree), agreeing=sum(agree), of=len(agree)))
    flags = {preset: float(str(applied.loc["b, beta", preset]) == APPLIED[True]) for preset in POLICIES}
    only = flags == {"tensorflow": 0, "pytorch": 1, "guidelines": 0}
    return [*checks, check("Only PyTorch's practice decays b and β.", only, **flags)]


@artefact("gamma/table-1", basis="formula", checks=_table_1_checks)
def where_decay_is_applied(context: Context, *, model: NetworkName[str], side: Data[int]) -> Evidence:
    """Which of W, γ_last, γ_down, γ_0, γ_others the three policies decay, by a step without gradients."""
    network, found, _ = grouped_network(context, model, side)
    roles = {name: GAMMAS[role] for name, role in dict(grouped_gammas(network, found)).items()}
    shrunk = {preset: _shrunk(network, found, policy) for preset, policy in POLICIES.items()}
    parameters = dict(network.named_parameters())
    kinds = {name: roles.get(name, "W" if value.dim() > 1 else "b, beta") for name, value in parameters.items()}
    rows = []
    for kind in ("W", *GAMMAS.values(), "b, beta"):
        members = {name for name in kinds if kinds[name] == kind}
        assert all(members <= names or not members & names for names in shrunk.values())
        applied = {preset: APPLIED[members <= names] for preset, names in shrunk.items()}
        rows.append({"parameter": kind, "tensors": len(members)} | applied)
    table = pd.DataFrame(rows)
    return Evidence(
        measured=table,
        facts=table,
        setup={"network": model, "decay": DECAY, "step": "SGD with gradients of zero"},
        on=("parameter",),
        draw=lambda: blocks_on_trunk(found),
    )


def _shrunk(network: nn.Module, found: ResidualMap, policy: str) -> set[str]:
    """Return the parameters that a step of SGD with zero gradients changes."""
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return {name for name, step in _step(network, found, policy).items() if step.any()}
