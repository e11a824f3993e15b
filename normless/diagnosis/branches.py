"""Branches that are dead or were never opened."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from normless.diagnosis.examination import Examination, gradient_norms
from normless.diagnosis.finding import Check, Cure, Finding
from normless.probes import probe
from normless.residual import ResidualBlock

NAME = "branches"
# A trained multiplier this much smaller than the median leaves its branch unused.
UNUSED = 1e-3

_DEAD = (
    "A product has no gradient in any of its factors once two of them are zero: a branch may be initialized to zero "
    "by its multiplier or by its last layer, not both, nor after a ReLU with zero output (Zhang et al., theorem 4)."
)


def check_branches(examination: Examination) -> Check:
    """Look for branches without output and gradients, and for multipliers that stayed near zero in training."""
    blocks = examination.map.blocks
    if not blocks:
        return Check(NAME, "there is no residual block", asked=False)
    signal = examination.measured.signal
    variances = dict(zip(signal["name"], signal["branch_variance"], strict=True))
    silent = [block for block in blocks if variances[block.name] == 0]
    summary = f"{len(blocks)} blocks, {len(silent)} with a branch that is zero so far"
    gradients = _gradients(examination) if silent else {}
    dead = [
        block
        for block in silent
        if all(gradients.get(name, 0.0) == 0 for name in _branch_parameters(examination, block))
    ]
    findings = [_dead(examination, dead)] if dead else []
    unused = _unused(examination, {block.name for block in dead})
    if unused:
        findings.append(unused)
    return Check(NAME, summary, tuple(findings))


def _gradients(examination: Examination) -> dict[str, float]:
    """Norms of the parameters' gradients, with a random classifier where a zero one stops them all."""
    e = examination
    sum_gradients = e.measured.backward["gradient_norm"].dropna()
    if e.map.classifier is None or sum_gradients.empty or sum_gradients.iloc[-1] != 0:
        return gradient_norms(e.measured)
    copied = deepcopy(e.model)
    weight = copied.get_submodule(e.map.classifier).get_parameter("weight")
    with torch.no_grad():
        weight.normal_(0, weight.shape[1] ** -0.5, generator=torch.Generator(weight.device).manual_seed(0))
    return gradient_norms(probe(copied, (e.inputs, e.targets), ["gradients"], loss=e.loss, residual_map=e.map))


def _branch_parameters(examination: Examination, block: ResidualBlock) -> list[str]:
    """The trainable parameters of a block's branch, including a multiplier in its sum."""
    names = [name for layer in block.branch_layers for name in layer.parameters]
    if block.sum is not None:
        names += [f"{block.sum}.{name}" for name, _ in examination.model.get_submodule(block.sum).named_parameters()]
    parameters = dict(examination.model.named_parameters())
    return [name for name in dict.fromkeys(names) if name in parameters and parameters[name].requires_grad]


def _multiplier(model: nn.Module, names: list[str]) -> float | None:
    multipliers = [model.get_parameter(name) for name in names if name.endswith("multiplier")]
    return float(multipliers[0].detach().abs().max()) if multipliers else None


def _dead(examination: Examination, dead: list[ResidualBlock]) -> Finding:
    first, total = dead[0], examination.map.depth
    parameters = _branch_parameters(examination, first)
    stuck = _multiplier(examination.model, parameters) == 0
    cause = "its multiplier is stuck at 0, because its factor is zero too" if stuck else "its output is zero"
    return Finding(
        "stuck_multiplier" if stuck else "dead_branch",
        0.5 + 0.4 * len(dead) / total,
        f"{len(dead)} of {total} branches are dead, as that of {first.name}: {cause}, and none of its parameters "
        "gets a gradient.",
        {"dead": len(dead), "blocks": total, "parameters_without_gradient": len(parameters)},
        tuple(block.name for block in dead),
        _DEAD,
        examination.cure(
            "initialize one factor of the branch other than zero: SkipInit's multiplier is zero and the weights are "
            "not (skipinit), Fixup's last layer is zero and the multiplier is 1 (fixup); a branch closed by ReLUs "
            "needs a smaller learning rate or another initialization",
            *("skipinit", "fixup"),
        ),
    )


def _unused(examination: Examination, dead: set[str]) -> Finding | None:
    """A finding if some multipliers stayed near zero while others grew."""
    values = {}
    for block in examination.map.blocks:
        value = _multiplier(examination.model, _branch_parameters(examination, block))
        if value is not None and block.name not in dead:
            values[block.name] = value
    if not values:
        return None
    median = sorted(values.values())[len(values) // 2]
    closed = [name for name, value in values.items() if value < UNUSED * median]
    if not closed:
        return None
    return Finding(
        "branch_never_grew",
        0.2 + 0.3 * len(closed) / len(values),
        f"{len(closed)} of {len(values)} branches never grew, as that of {closed[0]}: its multiplier is "
        f"{values[closed[0]]:.2g}, the median {median:.2g}.",
        {"closed": len(closed), "multiplier": values[closed[0]], "median_multiplier": median},
        tuple(closed),
        "A block with a closed branch is its skip path: its layers cost time and change nothing.",
        Cure(
            "do not decay multipliers and train them at the full rate: nl.param_groups(model, lr=…, weight_decay=…); "
            "or remove these blocks"
        ),
    )
