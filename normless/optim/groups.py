"""Parameter groups by what a parameter is: weights, γ by role, biases, scalars (Kim et al., table 1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from normless.arguments import forward_arguments, unwrapped
from normless.decay import GROUPS, Policy, decays_of, patterns_of
from normless.nn import Pointwise, ResidualSum, ScalarAffine, ShiftedActivation
from normless.residual import Layer, ResidualMap
from normless.residual import residual_map as find_residual_map
from normless.residual.classify import NORMS, kind_of

Factors = tuple[float, float]
UNSCALED: Factors = (1.0, 1.0)

# Their parameters other than biases are weights, of whatever shape.
_WEIGHTED = (nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.RNNCellBase)


def param_groups(
    model: nn.Module,
    *inputs: Any,
    lr: float,
    weight_decay: float,
    policy: Policy = "guidelines",
    scalar_lr_scale: float = 1.0,
    eps: float = 1e-8,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
) -> list[dict[str, Any]]:
    """Named parameter groups for any torch optimizer, every trainable parameter in exactly one of them.

    Groups are defined in `parameter_roles`. The schedulers of torch, timm and transformers scale every group's lr and
    so keep the proportions.

    Args:
        model: the network, converted or not. A converted one needs no example inputs, also inside a wrapper of one
            child, as DistributedDataParallel and torch.compile make.
        lr: the base learning rate; a group's own is lr · rate_scale, which stays in the group.
        weight_decay: λ of the groups that the policy decays; 0 for the others.
        policy: `guidelines` (weights, γ_last and γ_others decayed, nothing else), `all`, or `weights`; several of
            them, groups, roles of γ and patterns of parameters' names joined by +, as in `weights+last`; or a mapping
            from these to whether they decay, or to a λ of their own: see `normless.decay.decays_of`.
        scalar_lr_scale: factor on the rate of multipliers and scalar biases; 0.1 in the code of Fixup's authors.
        eps: ε of Adam, multiplied as the rate is where a scheme (`completep`) scales it on branches.
        residual_map: the network's map where it is known; else it is found, by `example_inputs` if need be.
        example_inputs: replaces `inputs`: a tensor, a tuple of positional or a dictionary of keyword arguments.

    Returns:
        Dictionaries with keys params, name, lr, rate_scale, weight_decay; empty groups are left out. What a pattern
        takes out of a group is one of its own, named `GROUP:PATTERN`. So are parameters on branches that have a rate
        of their own (`depth_mup`, `completep`), named `GROUP:branches`; where ε is scaled they have a key eps.

    Raises:
        ValueError: an unknown policy or group name, a pattern that no parameter matches, a negative rate, decay or ε,
            or a map of another network.
        UnresolvedStructureError: the network must be traced, and no inputs came or it cannot be exported.
    """
    if not (lr >= 0 and weight_decay >= 0 and scalar_lr_scale >= 0 and eps >= 0):
        raise ValueError(
            f"Rates, decay and ε are not negative, got lr={lr}, weight_decay={weight_decay}, "
            f"scalar_lr_scale={scalar_lr_scale}, eps={eps}."
        )
    decays = decays_of(policy, weight_decay)
    patterns = patterns_of(decays)
    positional, named_inputs = forward_arguments(inputs, {}, example_inputs)
    if residual_map is None and not (positional or named_inputs):
        model = unwrapped(model)
    residual_map = find_residual_map(model, *positional, **named_inputs) if residual_map is None else residual_map
    named = dict(model.named_parameters())
    factors = _branch_factors(model, residual_map)
    groups: dict[tuple[str, str, Factors], dict[str, Any]] = {}
    for name, group in parameter_roles(model, residual_map).items():
        pattern = next((one for one in reversed(patterns) if fnmatchcase(name, one)), "")
        rate, epsilon = scaled = factors.get(name, UNSCALED)
        scale = rate * scalar_lr_scale if group == "scalars" else rate
        made = {
            "params": [],
            "name": ":".join(filter(None, (group, pattern, "" if scaled == UNSCALED else "branches"))),
            "lr": lr * scale,
            "rate_scale": scale,  # not lr_scale, by which timm's schedulers would multiply the scaled rate again
            "weight_decay": decays.get(pattern or group, 0.0),
        }
        made |= {} if epsilon == 1.0 else {"eps": eps * epsilon}
        groups.setdefault((group, pattern, scaled), made)["params"].append(named[name])
    idle = [one for one in patterns if all(one != pattern for _, pattern, _ in groups)]
    if idle:
        raise ValueError(
            f"No trained parameter of this network has a name like {', '.join(idle)} that no later pattern takes; "
            f"its names are such as {', '.join(list(named)[:3])}."
        )
    order = sorted(groups, key=lambda key: (GROUPS.index(key[0]), key[1] != "", key[2] != UNSCALED))
    return [groups[key] for key in order]


def _branch_factors(model: nn.Module, residual_map: ResidualMap) -> dict[str, Factors]:
    """The factors on the learning rate and on Adam's ε of parameters by name; empty where no branch has any.

    A parameter that no layer reads goes with the smallest module around it that has layers. One that is not on
    branches of the same factors alone keeps its rate. A map without the scaled sums raises ValueError.
    """
    sums = ((path, module) for path, module in model.named_modules() if isinstance(module, ResidualSum))
    stated = ((path, (one.branch_rate, one.branch_epsilon)) for path, one in sums)
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
        for place in (*layer.parameters, *_around(layer.path.partition(":")[0])):
            seen[place].add(on_branch.get(layer, UNSCALED))
    names = [name for name, _ in model.named_parameters()]
    nearest = {name: next((seen[at] for at in _around(name) if at in seen), set()) for name in names}
    return {name: one for name, factors in nearest.items() for one in factors if len(factors) == 1}


def _around(path: str) -> Iterator[str]:
    """A path and those of the modules around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def parameter_roles(model: nn.Module, residual_map: ResidualMap) -> dict[str, str]:
    """The group of every trainable parameter, by its first qualified name.

    The layers of the map that read a parameter say what it is:

    - `weights`: kernels, matrices, embedding tables (also of positions); a tied one is listed once.
    - `gamma_last`, `gamma_down`, `gamma_stem`, `gamma_other`: the γ of a norm, by the norm's role. A γ that
      several norms share has the role of the first of them in the map.
    - `gains`: factors per output channel of a standardized or normalized weight.
    - `layer_scale`: factors per channel or head on activations, γ of DyT and Derf among them.
    - `biases`: biases, β, tables of attention biases, and whatever else a norm learns beside its γ, such as the
      threshold of a fused activation.
    - `scalars`: multipliers of one element (SkipInit, ReZero, a logit scale, α of DyT) and biases (Fixup, s of Derf).
    - `rest`: slopes of activations (PReLU), tokens and positions made for any batch, of shape [1, …], and vectors
      of unknown use.

    A parameter that no layer reads (its module did not run, or only looks up rows) is what the one of its name is
    in modules of its class that did run, else what its class and shape say; the γ of such a norm is `gamma_other`.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    modules = dict(model.named_modules(remove_duplicate=False))
    read = _read_by_layers(residual_map, named, modules)
    siblings = _by_sibling(model, read)
    roles: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            path, _, last = name.rpartition(".")
            module = modules[path]
            role = _own_part(module, last, parameter) or read.get(id(parameter)) or siblings.get((type(module), last))
            roles[name] = role or _by_class(module, last, parameter, residual_map.norms.get(path, "other"))
    return roles


def _read_by_layers(
    residual_map: ResidualMap, named: Mapping[str, nn.Parameter], modules: Mapping[str, nn.Module]
) -> dict[int, str]:
    """The group of every parameter that a layer reads, by the parameter's id."""
    gammas: dict[int, str] = {}
    others: dict[int, str] = {}
    for layer in residual_map.layers():
        owner = layer.path.partition(":")[0]
        missing = [f"the parameter {name}" for name in (layer.gamma, *layer.parameters) if name and name not in named]
        if missing or owner not in modules:
            raise ValueError(
                f"The residual map is not this network's: its layer {layer.path} names "
                f"{(*missing, f'the module {owner}')[0]}, which is not here. "
                "Map the network as it is now, or leave residual_map out."
            )
        if layer.gamma is not None:
            gammas.setdefault(id(named[layer.gamma]), _of_gamma(layer, named[layer.gamma], residual_map))
        for name in layer.parameters:
            path, _, last = name.rpartition(".")
            role = "biases" if layer.kind in ("norm", "scale") or name in layer.shifts else "rest"
            if role == "rest" and layer.kind == "weight":
                role = _of_weight_layer(modules[path], last, named[name])
            others.setdefault(id(named[name]), role)
    # Learned tensors of positions are added too, but are no vectors.
    for operation in () if residual_map.flow is None else residual_map.flow.operations:
        for parameter in map(named.__getitem__, operation.added):
            if parameter.numel() == max(parameter.shape, default=1) > 1:
                others.setdefault(id(parameter), "biases")
    return others | gammas


def _of_gamma(layer: Layer, gamma: Tensor, residual_map: ResidualMap) -> str:
    if layer.kind == "norm":
        return f"gamma_{residual_map.norms[layer.path]}"
    if gamma.numel() == 1:
        return "scalars"
    # A factor for every element, such as a filter in the frequency domain, is a weight.
    if gamma.numel() > max(gamma.shape):
        return "weights"
    return "gains" if layer.kind == "weight" else "layer_scale"


def _of_weight_layer(module: nn.Module, name: str, parameter: Tensor) -> str:
    known = kind_of(module) == "weight"
    if known and name == "weight":
        return "weights"
    if parameter.numel() == 1:
        return "scalars"
    if known and parameter.numel() == max(parameter.shape):
        return "gains"
    return "weights" if parameter.dim() >= 2 else "biases"


def _by_sibling(model: nn.Module, read: Mapping[int, str]) -> dict[tuple[type[nn.Module], str], str]:
    """The group of a parameter by its module's class and its name, from those that a layer reads."""
    known: dict[tuple[type[nn.Module], str], str] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            group = read.get(id(parameter))
            if group is not None:
                known.setdefault((type(module), name), "gamma_other" if group.startswith("gamma") else group)
    return known


def _own_part(module: nn.Module, name: str, parameter: Tensor) -> str | None:
    """The group of what an edit of this library added to a layer, an activation or a sum."""
    own = (ScalarAffine, ShiftedActivation, Pointwise, ResidualSum)
    if not isinstance(module, own) or name == "bias" or (name == "weight" and not isinstance(module, Pointwise)):
        return None
    if name == "gain":
        return "gains"
    return "layer_scale" if name == "layer_scale" or parameter.numel() > 1 else "scalars"


def _by_class(module: nn.Module, name: str, parameter: Tensor, norm_role: str) -> str:
    # Recurrent layers call theirs bias_ih_l0, attention in_proj_bias, window attention relative_position_bias_table.
    if "bias" in name:
        return "biases"
    if isinstance(module, NORMS):
        return f"gamma_{norm_role}"
    kind = kind_of(module)
    if isinstance(module, _WEIGHTED):
        return "weights"
    if kind == "weight":
        return _of_weight_layer(module, name, parameter)
    if kind == "activation":
        return "rest"
    if parameter.numel() == 1:
        return "scalars"
    # With a first axis of one, made for any batch, it is a class token or the embedding of positions.
    is_matrix = parameter.numel() > max(parameter.shape) and parameter.shape[0] != 1
    return "weights" if is_matrix else "rest"
