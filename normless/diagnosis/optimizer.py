"""The check of the optimizer: the parameters that it trains and decays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import Finding, NotAsked, Steps, check, finding
from normless.optim.decay import decays_of
from normless.optim.roles import parameter_roles
from normless.optim.uses import follows_guidelines

# Severity of a decay that `param_groups` would not make, by group.
_SEVERITY = {"scalars": 0.45, "gamma_down": 0.4, "gamma_stem": 0.35, "layer_scale": 0.3, "gains": 0.25}
_MILD = 0.15
_WORDS = {"gamma_down": "γ_down", "gamma_stem": "γ_0 of the stem", "scalars": "multipliers and scalar biases"}


@check("optimizer")
def check_optimizer(exam: Examination) -> Steps:
    """Compare the optimizer's parameters and weight decays with the default of `param_groups` for this network."""
    if exam.optimizer is None:
        raise NotAsked("no optimizer was given")
    decays = {
        id(parameter): group.get("weight_decay", 0.0)
        for group in exam.optimizer.param_groups
        for parameter in group["params"]
    }
    parameters = dict(exam.model.named_parameters())
    # Without a map, the roles are unknown and decays are not judged.
    roles = (
        {name: "" for name, parameter in parameters.items() if parameter.requires_grad}
        if exam.map is None
        else parameter_roles(exam.model, exam.map)
    )
    is_guided, why = (False, "") if exam.map is None else follows_guidelines(exam.model, exam.map)
    # The roles that `param_groups` decays by default.
    asked = decays_of("guidelines", 1.0, batch_norms=is_guided)
    against: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    for name, role in roles.items():
        decay = decays.get(id(parameters[name]))
        if decay is None:
            missing[name] = role
        elif decay > 0 and exam.map is not None and role not in asked:
            against.setdefault(role, []).append(name)
    if against:
        worst = max(against, key=lambda role: _SEVERITY.get(role, _MILD))
        groups = ", ".join(
            f"{_WORDS.get(role, role.replace('_', ' '))} ({len(names)})" for role, names in against.items()
        )
        where = [name for names in against.values() for name in names]
        evidence = {"weight_decay": float(max(decays.values()))} | {
            role: len(members) for role, members in against.items()
        }
        severity = _SEVERITY.get(worst, _MILD)
        yield finding("decayed", severity, where, evidence, worst=worst, groups=groups, why=why)
    held = [parameter for group in exam.optimizer.param_groups for parameter in group["params"]]
    known = {id(parameter): name for name, parameter in parameters.items()}
    times = Counter(map(id, held))
    twice = [name for key, name in known.items() if times[key] > 1]
    if twice:
        yield finding("repeated_parameters", 0.85, twice, {"parameters": len(twice)})
    # Other tensors of the same shapes: the network's parameters were replaced after the optimizer was made.
    strange = Counter(tuple(parameter.shape) for parameter in held if id(parameter) not in known)
    if missing and not Counter(tuple(parameters[name].shape) for name in missing) - strange:
        yield finding("stale_optimizer", 0.98, list(missing), {"parameters": len(missing)})
    elif missing:
        scalars = list(missing.values()).count("scalars")
        including = f", {scalars} of them multipliers or scalar biases" if scalars else ""
        counts = {"parameters": len(missing), "scalars": scalars}
        severity = 0.97 if len(missing) == len(roles) else 0.9
        found = finding("untrained_parameters", severity, list(missing), counts, including=including)
        # γ, β and biases may keep their initial values; a multiplier, a vector of features and a matrix may not.
        is_affine = all(
            name.rpartition(".")[2] in ("weight", "bias") and parameters[name].dim() < 2 for name in missing
        )
        yield replace(found, advice=is_affine and not scalars)
    yield from _zero_rates(exam, known)
    decayed = sum(decay > 0 for decay in decays.values())
    return f"{len(decays)} parameters, {decayed} of them decayed"


def _zero_rates(exam: Examination, known: Mapping[int, str]) -> Iterator[Finding]:
    """Report groups with trainable parameters and a learning rate of 0, and whether a schedule sets it."""
    assert exam.optimizer is not None
    groups = exam.optimizer.param_groups
    trained = [
        (number, group, names)
        for number, group in enumerate(groups)
        if float(group["lr"]) == 0.0
        and (names := [known[id(p)] for p in group["params"] if p.requires_grad and id(p) in known])
    ]
    for kind, chosen in (
        ("scheduled_zero_rate", [part for part in trained if part[1].get("initial_lr")]),
        ("zero_rate", [part for part in trained if not part[1].get("initial_lr")]),
    ):
        where = [name for _, _, names in chosen for name in names]
        if not where:
            continue
        is_whole = len(chosen) == len(groups)
        words = "all groups" if is_whole else f"group {', '.join(str(number) for number, _, _ in chosen)}"
        initial = max(float(group.get("initial_lr", 0.0)) for _, group, _ in chosen)
        evidence = {"rate": 0.0, "parameters": len(where), "initial": initial}
        yield finding(kind, 0.98 if is_whole else 0.9, where, evidence, groups=words)
