"""Table 1: what TensorFlow, PyTorch and the guidelines decay, and the policies of `param_groups` named after them."""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn

from normless.optim import param_groups
from normless.plots import blocks_on_trunk
from normless.residual import ResidualMap
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, check
from normless_papers.gamma.groups import DECAY, GAMMAS, grouped_network, groups_by_map
from normless_papers.published import published_as

POLICIES = {"tensorflow": "weights", "pytorch": "all", "guidelines": "guidelines"}

# What table 1 of the paper says in its own words of what is decayed and what is not.
APPLIED = {True: "applied", False: "not applied"}
PRINTED = {"applied": True, "applicable": True, "rarely applied": False, "inapplicable": False}


def _table_1_checks(table: pd.DataFrame) -> list[Check]:
    return [*_preset_checks(table), _everything(table)]


@artefact("gamma/table-1", basis="formula", checks=_table_1_checks)
def where_decay_is_applied(context: Context, *, model: str, side: int) -> Evidence:
    """Which of W, γ_last, γ_down, γ_0, γ_others the three policies decay, by a step without gradients."""
    network, found, _ = grouped_network(context, model, side)
    roles = {name: GAMMAS[role] for name, role in groups_by_map(network, found).items()}
    shrunk = {preset: _shrunk(network, found, policy) for preset, policy in POLICIES.items()}
    names = [name for name, _ in network.named_parameters()]
    kinds = {name: _kind(network, name, roles) for name in names}
    rows = []
    for kind in ("W", *GAMMAS.values(), "b, beta"):
        members = [name for name in names if kinds[name] == kind]
        flags = {preset: {name in touched for name in members} for preset, touched in shrunk.items()}
        assert all(len(one) == 1 for one in flags.values())
        rows.append(
            {"parameter": kind, "tensors": len(members)} | {name: APPLIED[one.pop()] for name, one in flags.items()}
        )
    table = pd.DataFrame(rows)
    return Evidence(
        measured=table,
        facts=table,
        setup={"network": model, "decay": DECAY, "step": "SGD with gradients of zero", "seed": context.seed},
        on=("parameter",),
        draw=lambda: blocks_on_trunk(found),
        remarks=("PyTorch's weight decay covers b and β too, of which the paper's table does not speak.",),
    )


def _shrunk(network: nn.Module, found: ResidualMap, policy: str) -> set[str]:
    """The parameters that a step of SGD without gradients changes."""
    start = {name: one.detach().clone() for name, one in network.named_parameters()}
    for one in network.parameters():
        one.grad = torch.zeros_like(one)
    groups = param_groups(network, lr=1.0, weight_decay=DECAY, policy=policy, residual_map=found)
    torch.optim.SGD(groups, lr=1.0).step()
    changed = {name for name, one in network.named_parameters() if not torch.equal(one.detach(), start[name])}
    with torch.no_grad():
        for name, one in network.named_parameters():
            one.copy_(start[name])
    return changed


def _kind(network: nn.Module, name: str, roles: dict[str, str]) -> str:
    if name in roles:
        return roles[name]
    return "W" if network.get_parameter(name).dim() > 1 else "b, beta"


def _preset_checks(table: pd.DataFrame) -> tuple[Check, ...]:
    said = {row["parameter"]: row for row in published_as("gamma/table-1").rows}
    applied = table.set_index("parameter")
    checks = []
    for preset in POLICIES:
        agree = [APPLIED[PRINTED[row[preset]]] == applied.loc[kind, preset] for kind, row in said.items()]
        checks.append(
            check(
                f"The policy {POLICIES[preset]!r} decays what column {preset} of the table says, and nothing else.",
                all(agree),
                agreeing=sum(agree),
                of=len(agree),
            )
        )
    return tuple(checks)


def _everything(table: pd.DataFrame) -> Check:
    (row,) = table[table["parameter"] == "b, beta"].to_dict("records")
    flags = {preset: float(row[preset] == APPLIED[True]) for preset in POLICIES}
    return check(
        "Of b and β, only PyTorch's practice decays any.",
        flags == {"tensorflow": 0, "pytorch": 1, "guidelines": 0},
        **flags,
    )
