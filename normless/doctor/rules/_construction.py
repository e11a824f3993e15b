"""Checks of how network and optimizer were built: modules that never run, initial scales, parameters and decays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from itertools import combinations
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from normless._internal.copying import copied
from normless.doctor._findings import Finding, NotAsked, Steps, check, finding
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._held import held, held_elsewhere, named_groups, parts_of
from normless.nn._activation import Pointwise
from normless.optim._decay import decays_of
from normless.optim._named import MUON
from normless.optim._roles import parameter_roles
from normless.optim._uses import follows_guidelines
from normless.residual import ResidualMap
from normless.residual._classify import kind_of
from normless.state import preserve_random_state

# Methods that initialize a network: one module at a time, and all modules at once.
BY_MODULE = "_init_weights"
AT_ONCE = ("init_weights", "initialize_weights", "_reset_parameters", "reset_parameters")
# Standard deviations that differ by less than SAME count as equal; below SCALED of another, as scaled down.
SAME, SCALED = 0.1, 0.75
# The share of unchanged weights above which a network counts as untrained.
FRESH = 0.9
# The number of residual sums from which the scale of the branch ends matters.
SUMS = 4
Deviations = dict[str, float]
# Severity of a decay that `param_groups` would not make, by group.
_HARM = {"scalars": 1.0, "gamma_down": 0.8, "gamma_stem": 0.7, "layer_scale": 0.5, "gains": 0.3}
# The largest α of Derf that was measured to keep most of the loss under Muon.
_ALPHA = 0.3
_WORDS = {"gamma_down": "γ_down", "gamma_stem": "γ_0 of the stem", "scalars": "multipliers and scalar biases"}


@check("modules that run", needs="pass")
def check_calls(exam: Examination) -> Steps:
    """Look for modules that are never called and have no parameter that is read."""
    read = {source.name for call in exam.flow.calls for source in call.sources() if source.kind == "parameter"}
    leaves = {name: module for name, module in exam.model.named_modules() if name and not any(module.children())}

    def is_used(name: str, module: nn.Module) -> bool:
        own = [f"{name}.{parameter}" for parameter, _ in module.named_parameters()]
        counts = bool(own) or kind_of(module) == "activation"
        return name in exam.passed.entered or not counts or isinstance(module, _Loss) or bool(read.intersection(own))

    unused = {name for name, module in leaves.items() if not is_used(name, module)}
    if unused:
        where = list(dict.fromkeys(_topmost(name, unused, leaves) for name in leaves if name in unused))
        count = sum(parameter.numel() for name in unused for parameter in leaves[name].parameters())
        yield finding("never_called", where, {"modules": len(unused), "parameters": count})
    return f"{len(leaves) - len(unused)} of {len(leaves)}"


def _topmost(name: str, unused: set[str], leaves: dict[str, nn.Module]) -> str:
    """Return the outermost module around an unused one that contains only unused modules."""
    while (outer := name.rpartition(".")[0]) and unused.issuperset(
        leaf for leaf in leaves if leaf.startswith(f"{outer}.")
    ):
        name = outer
    return name


@check("initial scale", needs="pass")
def check_initial_scale(exam: Examination) -> Steps:
    """Compare the weights with the network's own initialization, and branch ends with the other weights."""
    asked = asked_deviations(exam.model)
    now = {name: _deviation(parameter) for name, parameter in exam.model.named_parameters() if parameter.dim() > 1}
    at_start = [name for name, asks in asked.items() if any(_same(now[name], deviation) for deviation in asks)]
    large = [name for name, asks in asked.items() if min(asks) < SCALED * now[name]]
    others = [name for name in at_start if name not in large]
    is_fresh = bool(others) and len(others) >= FRESH * (len(asked) - len(large))
    if large and is_fresh and all(any(_same(now[name], now[other]) for other in others) for name in large):
        evidence = {"weights": len(large), "deviation": now[large[0]], "asked": min(asked[large[0]])}
        yield finding("unreached_initialization", large, evidence)
    words = [f"{len(at_start)} of {len(asked)} weights are as the network's own code draws them"] if asked else []
    if (profile := _profile(exam, now)) is not None:
        common, ends = profile
        depth = len(exam.blocks)
        if all(_same(end, common) for end in ends) and _is_language_model(exam):
            evidence = {"deviation": common, "asked": common / sqrt(depth), "sums": depth}
            yield finding("unscaled_branch_ends", (), evidence)
        words.append(f"standard deviation {common:.3g} on branches, {ends[0]:.3g} to {ends[-1]:.3g} at their ends")
    if not words:
        raise NotAsked("the network defines no initialization, and its weights have no common scale")
    return "; ".join(words)


def asked_deviations(model: nn.Module) -> dict[str, list[float]]:
    """Return the standard deviations that a network's own initialization gives each weight, in order of the calls."""
    network = copied(model)
    by_module: Any = getattr(network, BY_MODULE, None)
    order: list[nn.Module] = []
    if callable(by_module) and len(signature(by_module).parameters) == 1:
        # Inner modules first, as in `apply`.
        network.apply(order.append)
    known = (getattr(network, name, None) for name in AT_ONCE)
    at_once = [(network, own) for own in known if callable(own) and not signature(own).parameters][:1]
    names = {id(weight): name for name, weight in network.named_parameters() if weight.dim() > 1}
    asked: dict[str, list[float]] = {}
    with preserve_random_state(network), torch.no_grad(), suppress(Exception):
        for module, initialize in [(module, partial(by_module, module)) for module in order] or at_once:
            before = [(weight, weight.clone()) for weight in module.parameters() if weight.dim() > 1]
            initialize()
            for weight, old in before:
                if not torch.equal(weight, old):
                    asked.setdefault(names[id(weight)], []).append(_deviation(weight))
    return asked


def _profile(exam: Examination, now: Deviations) -> tuple[float, list[float]] | None:
    """Return the common standard deviation of weights inside branches of any fan-in, and those at the ends."""
    inner, ends = [], []
    for block in exam.blocks:
        layers = [layer for layer in block.branch_layers if layer.kind == "weight"]
        weights = [*filter(None, (next((n for n in layer.parameters if n in now), None) for layer in layers))]
        inner += weights[:-1]
        ends += weights[-1:]
    if len(ends) < SUMS or not inner:
        return None
    shapes = {exam.model.get_parameter(name).shape for name in (*inner, *ends)}
    common = sorted(now[name] for name in inner)[len(inner) // 2]
    is_common = common > 0 and all(_same(now[name], common) for name in inner)
    return (common, [now[name] for name in ends]) if is_common and len(shapes) > 1 else None


def _is_language_model(exam: Examination) -> bool:
    """Whether branches begin with a norm, and the outputs have the length of an embedding."""
    embeddings = [module.num_embeddings for module in exam.model.modules() if isinstance(module, nn.Embedding)]
    return exam.norms_placed == "pre" and exam.logits.dim() == 3 and exam.logits.shape[-1] in embeddings


@check("tied weights", needs="pass")
def check_tied(exam: Examination) -> Steps:
    """Look for two trained weights of the same values that are not one parameter: they part in the first step."""
    named = [(f"{name}.weight", module) for name, module in exam.model.named_modules()]
    trained = {
        name: (module, float(module.weight.detach().flatten()[0]))
        for name, module in named
        if isinstance(module, (nn.Embedding, nn.Linear)) and exam.passed.gradients.get(name)
    }
    for (first, (one, corner)), (second, (other, value)) in combinations(trained.items(), 2):
        if corner == value and (how := _copied(one, other)):
            yield finding("untied_weights", [first, second], {"values": one.weight.numel()}, how=how)
            return f"{second} has the values of {first}, and is another parameter"
    return f"no two of {len(trained)} weights are copies of each other"


def _copied(one: nn.Embedding | nn.Linear, other: nn.Embedding | nn.Linear) -> str:
    """Return how a weight is a copy of another, if it is: a head of an embedding, or transposed in the same memory.

    Layers of one type may begin as copies of each other, and a decoder as the transposed encoder.
    """
    a, b = one.weight.detach(), other.weight.detach()
    is_shared = a.data_ptr() == b.data_ptr()
    if isinstance(one, nn.Embedding) is isinstance(other, nn.Embedding):
        is_copy, turned = is_shared and a.shape == b.shape[::-1] and a.stride() == b.stride()[::-1], ", transposed"
    else:
        is_copy, turned = a.device == b.device and torch.equal(a, b), ""
    # Weights of few different values were not drawn.
    if one.weight is other.weight or not is_copy or 2 * torch.unique(a).numel() <= a.numel():
        return ""
    return f"{'two parameters over the same memory' if is_shared else 'two tensors'}{turned}"


def _deviation(weight: Tensor) -> float:
    return float(weight.detach().float().std(correction=0))


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * max(a, b)


@check("optimizer", needs="optimizer")
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
    if steep and any(isinstance(part, MUON) for part in parts_of(exam.optimizer)):
        yield finding("derf_under_muon", list(steep), {"modules": len(steep), "alpha": max(steep.values())})
