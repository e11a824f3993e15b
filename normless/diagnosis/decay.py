"""Does the optimizer train everything, and decay what it should?"""

from __future__ import annotations

from normless.decay import POLICIES
from normless.diagnosis.examination import Examination
from normless.diagnosis.finding import Check, Cure, Finding
from normless.optim.roles import parameter_roles

NAME = "optimizer"
# How much it matters that a group is decayed against the guidelines.
_SEVERITY = {"scalars": 0.45, "gamma_down": 0.4, "gamma_stem": 0.35, "layer_scale": 0.3, "gains": 0.25}
_MILD = 0.15
_WORDS = {"gamma_down": "γ_down", "gamma_stem": "γ_0 of the stem", "scalars": "multipliers and scalar biases"}
_CURE = Cure(
    "group the parameters by role: SGD(nl.param_groups(model, lr=…, weight_decay=…, policy='guidelines'), …) decays "
    "weights, γ_last and γ_others, and nothing else"
)
_THEORY = (
    "The γ of skip paths and of the stem set the variance of a whole stage, which a decay would shrink beside the "
    "branches'; those of branch ends keep the branches small where they are decayed (Kim et al., guidelines 1 to 4). "
    "A decayed multiplier closes its branch."
)
_UNTRAINED = "What no group holds keeps its first value; a multiplier at 0 keeps its branch shut."


def check_optimizer(examination: Examination) -> Check:
    """Hold the optimizer's groups against the guidelines; without an optimizer there is nothing to hold."""
    optimizer = examination.optimizer
    if optimizer is None:
        return Check(NAME, "none was given", asked=False)
    decays = {id(one): group.get("weight_decay", 0.0) for group in optimizer.param_groups for one in group["params"]}
    named = dict(examination.model.named_parameters())
    roles = parameter_roles(examination.model, examination.map)
    against: dict[str, list[str]] = {}
    missing: list[str] = []
    for name, role in roles.items():
        decay = decays.get(id(named[name]))
        if decay is None:
            missing.append(name)
        elif decay > 0 and role not in POLICIES["guidelines"]:
            against.setdefault(role, []).append(name)
    findings = [_decayed(against, max(decays.values()))] if against else []
    if missing:
        findings.append(_left_out(missing, roles))
    decayed = sum(decay > 0 for decay in decays.values())
    return Check(NAME, f"{len(decays)} parameters, {decayed} of them decayed", tuple(findings))


def _decayed(against: dict[str, list[str]], decay: float) -> Finding:
    worst = max(against, key=lambda role: _SEVERITY.get(role, _MILD))
    told = [f"{_WORDS.get(role, role.replace('_', ' '))} ({len(names)})" for role, names in against.items()]
    return Finding(
        f"decayed_{worst}",
        _SEVERITY.get(worst, _MILD),
        f"The optimizer decays what the guidelines leave alone: {', '.join(told)}.",
        {"weight_decay": float(decay)} | {role: len(names) for role, names in against.items()},
        tuple(name for names in against.values() for name in names),
        _THEORY,
        _CURE,
    )


def _left_out(names: list[str], roles: dict[str, str]) -> Finding:
    scalars = sum(roles[name] == "scalars" for name in names)
    among = f", {scalars} of them multipliers or scalar biases" if scalars else ""
    return Finding(
        "untrained_parameters",
        0.6 if scalars else 0.5,
        f"{len(names)} trainable parameters are in no group of the optimizer{among}, as {names[0]}.",
        {"parameters": len(names), "scalars": scalars},
        tuple(names),
        _UNTRAINED,
        Cure(
            "hand it all of them: nl.param_groups(model, lr=…, weight_decay=…) holds every trainable parameter once"
        ),
    )
