"""What every trainable parameter is, read from the residual map: a weight, a γ of some role, a bias, a scalar, …"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from normless.nn import ResidualSum, ScalarAffine, ShiftedActivation
from normless.residual import Layer, ResidualMap
from normless.residual.classify import NORMS, kind_of

# Their parameters other than biases are weights, of whatever shape.
_WEIGHTED = (nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.RNNCellBase)

_Siblings = Mapping[tuple[type[nn.Module], str], str]


def parameter_roles(model: nn.Module, residual_map: ResidualMap) -> dict[str, str]:
    """The group of every trainable parameter, by its first qualified name.

    The layers of the map that read a parameter say what it is:

    - `weights`: kernels, matrices, embedding tables (also of positions); a tied one is listed once.
    - `gamma_last`, `gamma_down`, `gamma_stem`, `gamma_other`: the γ of a norm, by the norm's role. A γ that
      several norms share has the role of the first of them in the map.
    - `gains`: factors per output channel of a standardized or normalized weight.
    - `layer_scale`: factors per channel or head on activations.
    - `biases`: biases, β, tables of attention biases, and whatever else a norm learns beside its γ, such as the
      threshold of a fused activation.
    - `scalars`: multipliers of one element (SkipInit, ReZero, a logit scale) and Fixup's scalar biases.
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
        _check_of_this_network(layer, named, modules)
        # A bias joined from several parameters looks like a weight with its gain.
        if layer.gamma is not None and "bias" not in layer.gamma.rpartition(".")[2]:
            gammas.setdefault(id(named[layer.gamma]), _of_gamma(layer, named[layer.gamma], residual_map))
        for name in layer.parameters:
            path, _, last = name.rpartition(".")
            others.setdefault(id(named[name]), _beside_gamma(layer, modules[path], last, named[name]))
    return others | gammas


def _check_of_this_network(layer: Layer, named: Mapping[str, nn.Parameter], modules: Mapping[str, nn.Module]) -> None:
    names = layer.parameters if layer.gamma is None else (layer.gamma, *layer.parameters)
    missing = [name for name in names if name not in named]
    path = layer.path.partition(":")[0]
    if missing or path not in modules:
        what = f"the parameter {missing[0]}" if missing else f"the module {path}"
        raise ValueError(
            f"The residual map is not this network's: its layer {layer.path} names {what}, which is not here. "
            "Map the network as it is now, or leave residual_map out."
        )


def _of_gamma(layer: Layer, gamma: Tensor, residual_map: ResidualMap) -> str:
    if layer.kind == "norm":
        return f"gamma_{residual_map.norms[layer.path]}"
    if gamma.numel() == 1:
        return "scalars"
    # A factor for every element, such as a filter in the frequency domain, is a weight.
    if gamma.numel() > max(gamma.shape):
        return "weights"
    return "gains" if layer.kind == "weight" else "layer_scale"


def _beside_gamma(layer: Layer, module: nn.Module, name: str, parameter: Tensor) -> str:
    if layer.kind in ("norm", "scale") or "bias" in name:
        return "biases"
    if layer.kind != "weight":
        return "rest"
    return _of_weight_layer(module, name, parameter)


def _of_weight_layer(module: nn.Module, name: str, parameter: Tensor) -> str:
    known = kind_of(module) == "weight"
    if known and name == "weight":
        return "weights"
    if parameter.numel() == 1:
        return "scalars"
    if known and parameter.numel() == max(parameter.shape):
        return "gains"
    return "weights" if parameter.dim() >= 2 else "biases"


def _by_sibling(model: nn.Module, read: Mapping[int, str]) -> _Siblings:
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
    if not isinstance(module, (ScalarAffine, ShiftedActivation, ResidualSum)) or name in ("weight", "bias"):
        return None
    if name == "gain":
        return "gains"
    per_channel = name == "layer_scale" or parameter.numel() > 1
    return "layer_scale" if per_channel else "scalars"


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
