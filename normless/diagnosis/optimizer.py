"""The optimizer: which parameters it trains and decays, and its first steps on copies."""

from __future__ import annotations

from copy import deepcopy
from itertools import repeat

from torch.optim import Optimizer

from normless.decay import POLICIES
from normless.diagnosis.examination import Check, Cure, Examination, Finding
from normless.divergence import first_diverged, has_diverged
from normless.optim.groups import parameter_roles
from normless.probes import Signal, descend, observe, preserve_state

GROUPS = "optimizer"
STEPS = "first steps"

# Severity of a decay against the guidelines, by group.
_SEVERITY = {"scalars": 0.45, "gamma_down": 0.4, "gamma_stem": 0.35, "layer_scale": 0.3, "gains": 0.25}
_MILD = 0.15
_WORDS = {"gamma_down": "γ_down", "gamma_stem": "γ_0 of the stem", "scalars": "multipliers and scalar biases"}
_DECAY = (
    "The γ of skip paths and of the stem set the variance of a whole stage, and a decay shrinks it relative to the "
    "branches; a decay of those at branch ends keeps the branches small (Kim et al., guidelines 1 to 4). A decayed "
    "multiplier closes its branch."
)
_DIVERGED = (
    "Along a large update the activations of the upper layers grow exponentially with depth, which the gradient at "
    "its start does not show: the loss explodes at its far end (Bjorck et al., section 3.4, figures 5 and 6)."
)
_CLOSED = (
    "A branch initialized to zero opens with the first step of its multiplier or last layer; one that stays closed "
    "is not trained by the optimizer, or gets no gradient."
)


def check_optimizer(e: Examination) -> Check:
    """Compare the optimizer's parameters and weight decays with the guidelines."""
    if e.optimizer is None:
        return Check(GROUPS, "none was given", asked=False)
    decays = {
        id(one): group.get("weight_decay", 0.0) for group in e.optimizer.param_groups for one in group["params"]
    }
    parameters = dict(e.model.named_parameters())
    roles = parameter_roles(e.model, e.map)
    against: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    for name, role in roles.items():
        decay = decays.get(id(parameters[name]))
        if decay is None:
            missing[name] = role
        elif decay > 0 and role not in POLICIES["guidelines"]:
            against.setdefault(role, []).append(name)
    findings = [_decayed(against, max(decays.values()))] if against else []
    if missing:
        findings.append(_untrained(missing))
    decayed = sum(decay > 0 for decay in decays.values())
    return Check(GROUPS, f"{len(decays)} parameters, {decayed} of them decayed", tuple(findings))


def _decayed(against: dict[str, list[str]], decay: float) -> Finding:
    worst = max(against, key=lambda role: _SEVERITY.get(role, _MILD))
    groups = [f"{_WORDS.get(role, role.replace('_', ' '))} ({len(names)})" for role, names in against.items()]
    return Finding(
        f"decayed_{worst}",
        _SEVERITY.get(worst, _MILD),
        f"The optimizer decays parameters that the guidelines do not: {', '.join(groups)}.",
        {"weight_decay": float(decay)} | {role: len(names) for role, names in against.items()},
        tuple(name for names in against.values() for name in names),
        _DECAY,
        Cure(
            "group the parameters by role: SGD(nl.param_groups(model, lr=…, weight_decay=…, policy='guidelines'), …) "
            "decays weights, γ_last and γ_others, and nothing else"
        ),
    )


def _untrained(roles: dict[str, str]) -> Finding:
    scalars = list(roles.values()).count("scalars")
    including = f", {scalars} of them multipliers or scalar biases" if scalars else ""
    return Finding(
        "untrained_parameters",
        0.6 if scalars else 0.5,
        f"{len(roles)} trainable parameters are in no group of the optimizer{including}, as {next(iter(roles))}.",
        {"parameters": len(roles), "scalars": scalars},
        tuple(roles),
        "Parameters in no group keep their initial value; a multiplier at 0 keeps its branch closed.",
        Cure("pass all of them: nl.param_groups(model, lr=…, weight_decay=…) has every trainable parameter once"),
    )


def check_first_steps(e: Examination, steps: int) -> Check:
    """Take `steps` steps of the optimizer on the one batch, with copies of network and optimizer."""
    if e.optimizer is None or steps < 1:
        reason = "no optimizer was given" if e.optimizer is None else "0 steps were requested"
        return Check(STEPS, f"not tried: {reason}", asked=False)
    losses, closed = _trial(e, e.optimizer, steps)
    rate, change = max(group["lr"] for group in e.optimizer.param_groups), f"from {losses[0]:.3g} to {losses[-1]:.3g}"
    finding = None
    if first_diverged(losses) is not None:
        made = len(losses) - 1
        finding = Finding(
            "diverging",
            0.95,
            f"Training diverges: the loss goes {change} in {made} step{'s' * (made > 1)} at rate {rate:.3g}.",
            {"rate": rate, "steps": made, "loss_before": losses[0], "loss_behind": losses[-1]},
            (),
            _DIVERGED,
            Cure(
                "use a smaller learning rate, or a network that is stable at this one: "
                "nl.convert(model, 'skipinit', inputs)",
                e.fitting("skipinit", "fixup"),
            ),
        )
    elif closed:
        finding = Finding(
            "branch_never_grows",
            0.3 + 0.5 * len(closed) / e.map.depth,
            f"{len(closed)} of {e.map.depth} branches are still zero after {steps} steps at rate {rate:.3g}, as that "
            f"of {closed[0]}.",
            {"shut": len(closed), "blocks": e.map.depth, "steps": steps, "rate": rate},
            closed,
            _CLOSED,
            Cure("pass every parameter to the optimizer: nl.param_groups(model, lr=…, weight_decay=…)"),
        )
    summary = f"{steps} steps at rate {rate:.3g} take the loss {change}"
    return Check(STEPS, summary, () if finding is None else (finding,))


def _trial(e: Examination, given: Optimizer, steps: int) -> tuple[list[float], tuple[str, ...]]:
    """The losses before each step and after the last, and the blocks with a branch that is still zero."""
    # Copied together, so that the copied optimizer holds the copied parameters.
    model, optimizer = deepcopy((e.model, given))
    signal = Signal()
    with preserve_state(model, training=True):
        losses = list(descend(model, repeat((e.inputs, e.targets), steps), optimizer, loss=e.loss))
        if has_diverged(losses[-1]):
            return losses, ()
        losses.append(observe(model, [signal], e.inputs, e.targets, loss=e.loss, residual_map=e.map))
    table = signal.table()
    return losses, () if has_diverged(losses[-1]) else tuple(table.loc[table["branch_variance"] == 0, "name"])
