"""Do all branches take part, or can they come to?"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from normless.diagnosis.examination import Examination, gradient_norms
from normless.diagnosis.finding import Check, Cure, Finding
from normless.probes.forward.moments import GradientMoments
from normless.probes.hooks.observe import observe
from normless.residual import ResidualBlock

NAME = "branches"
# A trained multiplier this much smaller than the others leaves its branch unused.
UNUSED = 1e-3

_DEAD = (
    "A product has no gradient in any of its factors once two of them are zero: a branch may start at zero by its "
    "multiplier or by its last layer, not by both, nor behind a ReLU that passes nothing (Zhang et al., theorem 4)."
)
_UNUSED = "A block whose branch is closed is its skip path: its layers cost time and change nothing."


def check_branches(examination: Examination) -> Check:
    """Look for branches that put out zero and get no gradient, and for multipliers left behind by training."""
    blocks = examination.map.blocks
    if not blocks:
        return Check(NAME, "there is no residual block", asked=False)
    variances = dict(zip(examination.signal["name"], examination.signal["branch_variance"], strict=True))
    silent = [block for block in blocks if variances[block.name] == 0]
    summary = f"{len(blocks)} blocks, {len(silent)} with a branch that is zero so far"
    gradients = _gradients(examination) if silent else {}
    dead = [block for block in silent if not _moves(examination, block, gradients)]
    findings = [_dead(examination, dead)] if dead else []
    unused = _unused(examination, {block.name for block in dead})
    if unused:
        findings.append(unused)
    return Check(NAME, summary, tuple(findings))


def _gradients(examination: Examination) -> dict[str, float]:
    """Norms of the parameters' gradients; where a zero classifier stops them all, behind one drawn anew."""
    behind = examination.backward["gradient_norm"].dropna()
    classifier = examination.map.classifier
    if classifier is None or behind.empty or behind.iloc[-1] != 0:
        return examination.gradients
    drawn = deepcopy(examination.model)
    weight = drawn.get_submodule(classifier).get_parameter("weight")
    with torch.no_grad():
        weight.normal_(0, weight.shape[1] ** -0.5, generator=torch.Generator(weight.device).manual_seed(0))
    watcher = GradientMoments()
    e = examination
    observe(drawn, [watcher], e.inputs, e.targets, loss=e.loss, residual_map=e.map)
    return gradient_norms(watcher.table())


def _parameters(examination: Examination, block: ResidualBlock) -> list[str]:
    """The trainable parameters of a block's branch, a multiplier in its sum included."""
    names = [name for layer in block.branch_layers for name in layer.parameters]
    if block.sum is not None:
        names += [f"{block.sum}.{name}" for name, _ in examination.model.get_submodule(block.sum).named_parameters()]
    named = dict(examination.model.named_parameters())
    return [name for name in dict.fromkeys(names) if name in named and named[name].requires_grad]


def _moves(examination: Examination, block: ResidualBlock, gradients: dict[str, float]) -> bool:
    return any(gradients.get(name, 0.0) != 0 for name in _parameters(examination, block))


def _multiplier(model: nn.Module, names: list[str]) -> float | None:
    found = [model.get_parameter(name) for name in names if name.endswith("multiplier")]
    return float(found[0].detach().abs().max()) if found else None


def _dead(examination: Examination, dead: list[ResidualBlock]) -> Finding:
    first = dead[0]
    value = _multiplier(examination.model, _parameters(examination, first))
    total = examination.map.depth
    stuck = value == 0
    cause = "its multiplier is stuck at 0, because what it multiplies is zero too" if stuck else "its output is zero"
    return Finding(
        "stuck_multiplier" if stuck else "dead_branch",
        0.5 + 0.4 * len(dead) / total,
        f"{len(dead)} of {total} branches are dead, as that of {first.name}: {cause}, and none of its parameters "
        "gets a gradient.",
        {"dead": len(dead), "blocks": total, "parameters_without_gradient": len(_parameters(examination, first))},
        tuple(block.name for block in dead),
        _DEAD,
        Cure(
            "let one factor of the branch be other than zero: SkipInit's multiplier with weights as they were drawn "
            "(skipinit), or Fixup's last layer with a multiplier of 1 (fixup); a branch shut by ReLUs needs a "
            "smaller learning rate or other first weights",
            examination.possible(("skipinit", "fixup")),
        ),
    )


def _unused(examination: Examination, dead: set[str]) -> Finding | None:
    """Multipliers that training left near zero while it opened the others."""
    values = {}
    for block in examination.map.blocks:
        value = _multiplier(examination.model, _parameters(examination, block))
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
        f"{values[closed[0]]:.2g}, where half of the others are above {median:.2g}.",
        {"closed": len(closed), "multiplier": values[closed[0]], "median_multiplier": median},
        tuple(closed),
        _UNUSED,
        Cure(
            "do not decay multipliers and train them at the full rate: nl.param_groups(model, lr=…, weight_decay=…); "
            "or take these blocks out"
        ),
    )
