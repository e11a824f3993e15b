"""The check of the optimizer: the parameters that it trains and decays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from normless.doctor.facts.examination import Examination
from normless.doctor.facts.held import held, held_elsewhere, named_groups
from normless.doctor.findings import Finding, NotAsked, Steps, check, finding
from normless.nn import Pointwise
from normless.optim import Muon
from normless.optim.decay import decays_of
from normless.optim.muon import OF_MATRICES
from normless.optim.roles import parameter_roles
from normless.optim.uses import follows_guidelines
from normless.residual import ResidualMap

# Severity of a decay that `param_groups` would not make, by group.
_HARM = {"scalars": 1.0, "gamma_down": 0.8, "gamma_stem": 0.7, "layer_scale": 0.5, "gains": 0.3}
# The largest α of Derf that was measured to keep most of the loss under Muon.
_ALPHA = 0.3
_WORDS = {"gamma_down": "γ_down", "gamma_stem": "γ_0 of the stem", "scalars": "multipliers and scalar biases"}


@check("optimizer")
def check_optimizer(exam: Examination) -> Steps:
    """Compare the optimizer's parameters and weight decays with the default of `param_groups` for this network."""
    if exam.optimizer is None:
        raise NotAsked("no optimizer was given")
    groups = exam.optimizer.param_groups
    decays = {id(own): group.get("weight_decay", 0.0) for group in groups for own in group["params"]}
    parameters = dict(exam.model.named_parameters())
    # Without a map, the roles are unknown and decays are not judged.
    trained = {name: "" for name, parameter in parameters.items() if parameter.requires_grad}
    roles = trained if exam.map is None else parameter_roles(exam.model, exam.map)
    if exam.map is not None:
        yield from _decayed(exam, exam.map, roles, {name: decays.get(id(parameters[name]), 0.0) for name in roles})
    times = Counter(map(id, held(exam.optimizer)))
    twice = [name for name, parameter in parameters.items() if times[id(parameter)] > 1]
    if twice:
        yield finding("repeated_parameters", twice, {"parameters": len(twice)})
    missing = {name: role for name, role in roles.items() if id(parameters[name]) not in decays}
    if missing:
        yield from _missing(exam, missing, is_all=len(missing) == len(roles))
    yield from _zero_rates(exam)
    yield from _derf_under_muon(exam)
    decayed = sum(decay > 0 for decay in decays.values())
    return f"{len(decays)} parameters, {decayed} of them decayed"


def _decayed(
    exam: Examination, mapped: ResidualMap, roles: Mapping[str, str], decays: Mapping[str, float]
) -> Iterator[Finding]:
    """Report weight decay of parameters that `param_groups` does not decay by default."""
    is_guided, why = follows_guidelines(exam.model, mapped)
    asked = decays_of("guidelines", 1.0, batch_norms=is_guided)
    against: dict[str, list[str]] = {}
    for name, role in roles.items():
        if decays[name] > 0 and role not in asked:
            against.setdefault(role, []).append(name)
    if not against:
        return
    worst = max(against, key=lambda role: _HARM.get(role, 0.0))
    groups = ", ".join(
        f"{_WORDS.get(role, role.replace('_', ' '))} ({len(names)})" for role, names in against.items()
    )
    where = [name for names in against.values() for name in names]
    evidence = {"weight_decay": float(max(decays.values()))} | {role: len(names) for role, names in against.items()}
    yield finding("decayed", where, evidence, grade=_HARM.get(worst, 0.0), worst=worst, groups=groups, why=why)


def _missing(exam: Examination, missing: Mapping[str, str], *, is_all: bool) -> Iterator[Finding]:
    """Report parameters that no optimizer holds; those that get no gradient either are not to be trained."""
    parameters = dict(exam.model.named_parameters())
    own = {*map(id, parameters.values())}
    # Other tensors of the same shapes: the network's parameters were replaced after the optimizer was made.
    strange = Counter(tuple(parameter.shape) for parameter in held(exam.optimizer) if id(parameter) not in own)
    if not Counter(tuple(parameters[name].shape) for name in missing) - strange:
        yield finding("stale_optimizer", list(missing), {"parameters": len(missing)})
        return
    # Sharded networks have no recorded pass.
    gradients = exam.passed.gradients if "passed" in vars(exam) else {}
    without = {name for name in missing if gradients.get(name, 0.0) is None}
    others = set() if is_all else held_elsewhere(exam.optimizer)
    names = [name for name in missing if is_all or (id(parameters[name]) not in others and name not in without)]
    if not names:
        return
    scalars = [missing[name] for name in names].count("scalars")
    including = f", {scalars} of them multipliers or scalar biases" if scalars else ""
    counts = {"parameters": len(names), "scalars": scalars}
    # γ, β and biases may keep their initial values; a multiplier, a vector of features and a matrix may not.
    is_affine = all(name.rpartition(".")[2] in ("weight", "bias") and parameters[name].dim() < 2 for name in names)
    advice = is_affine and not scalars
    yield finding("untrained_parameters", names, counts, grade=is_all, advice=advice, including=including)


def _zero_rates(exam: Examination) -> Iterator[Finding]:
    """Report groups with trainable parameters and a learning rate of 0, and whether a schedule sets it."""
    assert exam.optimizer is not None
    groups = named_groups(exam.optimizer, exam.model)
    still = [group for group in groups if float(group.settings["lr"]) == 0.0 and group.names]
    for kind, is_scheduled in (("scheduled_zero_rate", True), ("zero_rate", False)):
        chosen = [group for group in still if bool(group.settings.get("initial_lr")) is is_scheduled]
        where = [name for group in chosen for name in group.names]
        if not where:
            continue
        is_whole = len(chosen) == len(groups)
        words = "all groups" if is_whole else f"group {', '.join(str(group.number) for group in chosen)}"
        initial = max(float(group.settings.get("initial_lr", 0.0)) for group in chosen)
        evidence = {"rate": 0.0, "parameters": len(where), "initial": initial}
        yield finding(kind, where, evidence, grade=is_whole, groups=words)


def _derf_under_muon(exam: Examination) -> Iterator[Finding]:
    """Report Derf with a large α that Muon trains."""
    alphas = {
        name: float(module.alpha.detach())
        for name, module in exam.model.named_modules()
        if isinstance(module, Pointwise) and module.function == "erf"
    }
    # The factor allows for the rounding of float32.
    steep = {name: alpha for name, alpha in alphas.items() if alpha > 1.001 * _ALPHA}
    if steep and isinstance(exam.optimizer, (Muon, *OF_MATRICES)):
        yield finding("derf_under_muon", list(steep), {"modules": len(steep), "alpha": max(steep.values())})
