"""Parameter groups for optimizers: rates and decay by the role of a parameter (Kim et al., table 1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from normless._internal.arguments import forward_arguments, unwrapped
from normless._internal.calling import Call, with_call
from normless.exclusive import exclusive
from normless.nn import ResidualSum
from normless.optim._decay import GROUPS, PARTS, Policy, decays_of, patterns_of
from normless.optim._layerwise import around, kept_from_decay, layer_scales
from normless.optim._roles import parameter_roles
from normless.optim._uses import follows_guidelines, parts_of_weights
from normless.residual import ResidualMap, residual_map as find_residual_map

Factors = tuple[float, float]
UNSCALED: Factors = (1.0, 1.0)


class ParameterGroups(list[dict[str, Any]]):
    """A list of parameter groups for torch's optimizers, which prints as a table.

    Attributes:
        reason: which γ decay, and why.
    """

    def __init__(self, groups: Iterable[dict[str, Any]] = (), reason: str = "") -> None:
        super().__init__(groups)
        self.reason = reason

    @property
    def muon(self) -> list[dict[str, Any]]:
        """The groups of hidden matrices, for `torch.optim.Muon`; empty if no rate was given for it."""
        return [group for group in self if group["name"].partition(":")[0] == "hidden"]

    @property
    def rest(self) -> list[dict[str, Any]]:
        """All other groups, for another optimizer."""
        return [group for group in self if group["name"].partition(":")[0] != "hidden"]

    def __str__(self) -> str:
        rows = [("group", "tensors", "parameters", "lr", "decay")]
        for group in self:
            size = sum(parameter.numel() for parameter in group["params"])
            numbers = (f"{len(group['params'])}", f"{size:,}", f"{group['lr']:.3g}", f"{group['weight_decay']:.3g}")
            rows.append((group["name"], *numbers))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        return "\n".join([*lines, *([self.reason] if self.reason else [])])

    __repr__ = __str__


@exclusive
@with_call
def param_groups(
    model: nn.Module,
    *inputs: Any,
    lr: float,
    weight_decay: float,
    policy: Policy = "guidelines",
    scalar_lr_scale: float = 1.0,
    muon_lr: float | None = None,
    layer_decay: float = 1.0,
    eps: float = 1e-8,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
    call: Call | None = None,
) -> ParameterGroups:
    """Create named parameter groups for any torch optimizer, with every trainable parameter in exactly one group.

    The groups are defined in `parameter_roles`. The schedulers of torch, timm and transformers scale the lr of every
    group and so keep the proportions.

    Args:
        model: the network, converted or not. A converted network does not need example inputs, also inside a wrapper
            with one child, such as DistributedDataParallel or torch.compile.
        lr: the base learning rate; the rate of a group is lr · rate_scale, and the group keeps its rate_scale.
        weight_decay: λ of the groups that the policy decays; 0 for the others.
        policy: `guidelines` (weights; γ_last and γ_others too in a residual network all of whose norms are batch
            norms), `all`, or `weights`; several of them, groups, roles of γ and patterns of names joined by +, as in
            `weights+last`; or a mapping from these to whether they decay, or to a λ: see `normless.optim.decays_of`.
        scalar_lr_scale: factor on the rate of multipliers and scalar biases; 0.1 in the code of Fixup's authors.
        muon_lr: the rate of the hidden matrices, for `torch.optim.Muon(groups.muon)` beside another optimizer on
            `groups.rest`; weights are then split as in `parts_of_weights`.
        layer_decay: d of layer-wise rates: each block has d times the rate of the next one, see `layer_scales`.
        eps: ε of Adam, which a scheme (`completep`) may scale on branches like the rate.
        residual_map: the network's map; computed if None, with the example inputs if necessary.
        inputs, example_inputs, call: as in `residual_map`.

    Returns:
        Dictionaries with keys params, name, lr, rate_scale and weight_decay, which print as a table. Parameters of a
        group that match a pattern are a group of their own, `GROUP:PATTERN`; others that the network keeps from
        decay (see `kept_from_decay`) do not decay and are `GROUP:kept`; those of the K-th rate of layers are
        `GROUP:layer_K`. Parameters on branches with a rate of their own (`depth_mup`, `completep`) are a group
        `GROUP:branches`, with a key eps if ε is scaled.

    Raises:
        ValueError: a policy or group name is unknown, no parameter matches a pattern, a rate, decay or ε is negative,
            or the map belongs to another network.
        UnresolvedStructureError: the network must be traced, but there are no inputs or the forward pass fails.
    """
    rates = {"lr": lr, "weight_decay": weight_decay, "scalar_lr_scale": scalar_lr_scale, "eps": eps}
    rates |= {"layer_decay": layer_decay} | ({} if muon_lr is None else {"muon_lr": muon_lr})
    _check_rates(rates)
    decays_of(policy, weight_decay)  # Raises for a wrong policy before the network is traced.
    model, residual_map = _mapped(model, residual_map, *forward_arguments(inputs, {}, example_inputs))
    roles = parameter_roles(model, residual_map)
    is_guided, why = follows_guidelines(model, residual_map)
    decays = decays_of(policy, weight_decay, batch_norms=is_guided)
    wanted = {*PARTS} if muon_lr is not None else {*PARTS} & decays.keys()
    roles = _refined(model, residual_map, roles, wanted) if wanted else roles
    kept = _kept(model, roles, decays)
    reason = _reason(why if "guidelines" in policy else "", kept)
    return ParameterGroups(_grouped(model, residual_map, roles, decays, rates, kept), reason)


def _reason(guidelines: str, kept: list[str]) -> str:
    """Return in words why the guidelines decay what they decay, and what the network keeps from decay."""
    more = f" and {len(kept) - 3} more" if len(kept) > 3 else ""
    lines = [f"guidelines: {guidelines}"] if guidelines else []
    lines += [f"the network itself keeps {', '.join(kept[:3])}{more} from decay"] if kept else []
    return "\n".join(lines)


def _mapped(
    model: nn.Module, residual_map: ResidualMap | None, positional: Any, named: Any
) -> tuple[nn.Module, ResidualMap]:
    """Return a network, without a wrapper if nothing else tells its map, and its map."""
    if residual_map is not None:
        return model, residual_map
    if not (positional or named):
        model = unwrapped(model)
    return model, find_residual_map(model, *positional, **named)


def _check_rates(rates: dict[str, float]) -> None:
    if not all(rate >= 0 for rate in rates.values()):
        got = ", ".join(f"{name}={rate}" for name, rate in rates.items())
        raise ValueError(f"Expected rates, decay and ε of 0 or more, got {got}.")


def _refined(model: nn.Module, residual_map: ResidualMap, roles: dict[str, str], wanted: set[str]) -> dict[str, str]:
    """Return the group of every parameter by name, with the wanted parts of weights as groups of their own."""
    parts = parts_of_weights(model, residual_map)
    own = {name: parts.get(id(parameter), "") for name, parameter in model.named_parameters()}
    return {name: own[name] if role == "weights" and own[name] in wanted else role for name, role in roles.items()}


def _kept(model: nn.Module, roles: dict[str, str], decays: dict[str, float]) -> list[str]:
    """Return the parameters that the policy decays by their group, and that the network keeps from decay."""
    stated, patterns = kept_from_decay(model), patterns_of(decays)
    return [
        name
        for name, group in roles.items()
        if name in stated and _decay_of(group, decays) and not any(fnmatchcase(name, known) for known in patterns)
    ]


def _decay_of(group: str, decays: dict[str, float]) -> float:
    """Return the decay of a group or pattern; a part that the policy does not name has that of the weights."""
    return decays.get(group, decays.get("weights", 0.0) if group in PARTS else 0.0)


def _grouped(
    model: nn.Module,
    residual_map: ResidualMap,
    roles: dict[str, str],
    decays: dict[str, float],
    rates: dict[str, float],
    kept: list[str],
) -> list[dict[str, Any]]:
    """Create the groups of parameters with these roles, in the order of `GROUPS`."""
    patterns = patterns_of(decays)
    named = dict(model.named_parameters())
    factors = _branch_factors(model, residual_map)
    layers = layer_scales(model, residual_map, rates["layer_decay"]) if rates["layer_decay"] != 1.0 else {}
    depths = {scale: number for number, scale in enumerate(sorted({*layers.values()}))}
    groups: dict[tuple[str, str, Factors, float], dict[str, Any]] = {}
    for name, group in roles.items():
        pattern = next((candidate for candidate in reversed(patterns) if fnmatchcase(name, candidate)), "")
        rate, epsilon = scaled = factors.get(name, UNSCALED)
        layer = layers.get(name, 1.0)
        scale = layer * rate * (rates["scalar_lr_scale"] if group == "scalars" else 1.0)
        decay = _decay_of(pattern or group, decays)
        if name in kept:
            pattern, decay = "kept", 0.0
        is_muon = group == "hidden" and "muon_lr" in rates
        at = f"layer_{depths[layer]}" if layers else ""
        made = {
            "params": [],
            "name": ":".join(filter(None, (group, pattern, "" if scaled == UNSCALED else "branches", at))),
            "lr": rates["muon_lr" if is_muon else "lr"] * scale,
            "rate_scale": scale,  # not lr_scale, by which timm's schedulers would multiply the scaled rate again
            "weight_decay": decay,
        }
        made |= {} if epsilon == 1.0 or is_muon else {"eps": rates["eps"] * epsilon}
        groups.setdefault((group, pattern, scaled, layer), made)["params"].append(named[name])
    idle = [candidate for candidate in patterns if all(candidate != pattern for _, pattern, *_ in groups)]
    if idle:
        raise ValueError(
            f"No trainable parameter of this network matches {', '.join(idle)}, or a later pattern takes them; "
            f"names of its parameters are {', '.join(list(named)[:3])}."
        )
    order = sorted(groups, key=lambda key: (GROUPS.index(key[0]), key[1] != "", key[2] != UNSCALED, key[3]))
    return [groups[key] for key in order]


def _branch_factors(model: nn.Module, residual_map: ResidualMap) -> dict[str, Factors]:
    """Return the factors on the learning rate and on Adam's ε by parameter name; empty if no branch has factors.

    A parameter that no layer reads has the factors of the smallest module around it that has layers. A parameter
    keeps its rate unless all of its layers are on branches with the same factors.

    Raises:
        ValueError: the map does not have the scaled sums of the network.
    """
    sums = ((path, module) for path, module in model.named_modules() if isinstance(module, ResidualSum))
    stated = ((path, (module.branch_rate, module.branch_epsilon)) for path, module in sums)
    scaled = {path: factors for path, factors in stated if factors != UNSCALED}
    blocks = [block for block in residual_map.walk() if block.sum in scaled]
    if scaled and not blocks:
        raise ValueError(
            f"The residual map is not this network's: it does not have the residual sum {min(scaled)}. "
            "Map the network as it is now, or leave residual_map out."
        )
    on_branch = {layer: scaled[block.sum or ""] for block in blocks for layer in block.branch_layers}
    seen: dict[str, set[Factors]] = defaultdict(set)
    for layer in residual_map.layers() if scaled else ():
        for place in (*layer.parameters, *around(layer.path.partition(":")[0])):
            seen[place].add(on_branch.get(layer, UNSCALED))
    names = [name for name, _ in model.named_parameters()]
    nearest = {name: next((seen[at] for at in around(name) if at in seen), set()) for name in names}
    return {name: factor for name, factors in nearest.items() for factor in factors if len(factors) == 1}
