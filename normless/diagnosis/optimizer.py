"""The optimizer: which parameters it trains and decays, and its first steps on copies."""

from __future__ import annotations

from copy import deepcopy
from itertools import repeat

from torch.optim import Optimizer

from normless.decay import POLICIES
from normless.diagnosis.examination import Check, Examination
from normless.divergence import first_diverged, has_diverged
from normless.optim.groups import parameter_roles
from normless.probes import Signal, descend, observe, preserve_state

GROUPS = "optimizer"
STEPS = "first steps"

# Severity of a decay against the guidelines, by group.
_SEVERITY = {"scalars": 0.45, "gamma_down": 0.4, "gamma_stem": 0.35, "layer_scale": 0.3, "gains": 0.25}
_MILD = 0.15
_WORDS = {"gamma_down": "γ_down", "gamma_stem": "γ_0 of the stem", "scalars": "multipliers and scalar biases"}


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
    findings = []
    if against:
        worst = max(against, key=lambda role: _SEVERITY.get(role, _MILD))
        groups = ", ".join(
            f"{_WORDS.get(one, one.replace('_', ' '))} ({len(names)})" for one, names in against.items()
        )
        where = [name for names in against.values() for name in names]
        evidence = {"weight_decay": float(max(decays.values()))} | {role: len(one) for role, one in against.items()}
        severity = _SEVERITY.get(worst, _MILD)
        findings.append(e.finding("decayed", severity, where, evidence, worst=worst, groups=groups))
    if missing:
        scalars = list(missing.values()).count("scalars")
        including = f", {scalars} of them multipliers or scalar biases" if scalars else ""
        counts = {"parameters": len(missing), "scalars": scalars}
        severity = 0.6 if scalars else 0.5
        findings.append(e.finding("untrained_parameters", severity, list(missing), counts, including=including))
    decayed = sum(decay > 0 for decay in decays.values())
    return Check(GROUPS, f"{len(decays)} parameters, {decayed} of them decayed", tuple(findings))


def check_first_steps(e: Examination, steps: int) -> Check:
    """Take `steps` steps of the optimizer on the one batch, with copies of network and optimizer."""
    if e.optimizer is None or steps < 1:
        reason = "no optimizer was given" if e.optimizer is None else "0 steps were requested"
        return Check(STEPS, f"not tried: {reason}", asked=False)
    losses, closed = _trial(e, e.optimizer, steps)
    rate, findings = max(group["lr"] for group in e.optimizer.param_groups), []
    if first_diverged(losses) is not None:
        made = len(losses) - 1
        evidence = {"rate": rate, "steps": made, "loss_before": losses[0], "loss_behind": losses[-1]}
        words = "steps" if made > 1 else "step"
        findings.append(e.finding("diverging", 0.95, (), evidence, step_or_steps=words))
    elif closed:
        evidence = {"shut": len(closed), "blocks": e.map.depth, "steps": steps, "rate": rate}
        findings.append(e.finding("branch_never_grows", 0.3 + 0.5 * len(closed) / e.map.depth, closed, evidence))
    summary = f"{steps} steps at rate {rate:.3g} take the loss from {losses[0]:.3g} to {losses[-1]:.3g}"
    return Check(STEPS, summary, tuple(findings))


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
