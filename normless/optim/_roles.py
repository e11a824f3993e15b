"""The roles of a network's parameters: weight, γ by role, bias, scalar (Kim et al., table 1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from normless._internal.reach import reachable
from normless.nn import ResidualSum, ScalarAffine
from normless.nn._activation import Pointwise, ShiftedActivation
from normless.residual import Layer, ResidualMap
from normless.residual._classify import NORMS, kind_of
from normless.residual._graph import Dataflow
from normless.residual._operations import ATTENTION, LAYOUT, LOG_SOFTMAX, SOFTMAX, WEIGHT

# Modules with parameters that are all weights, of any shape, except for biases.
_WEIGHTED = (nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.RNNCellBase)
_PRODUCTS = {"mul", "div"}
# Operations between a factor and a softmax or the outputs; operations on two activations only if they are products.
_PASSING = LAYOUT | {"mul", "div", "exp", "clamp", "clamp_max", "masked_fill", "where", "add", "sub"}


def parameter_roles(model: nn.Module, residual_map: ResidualMap) -> dict[str, str]:
    """Return the group of every trainable parameter, by its first qualified name.

    The layers of the map that read a parameter decide its group:

    - `weights`: kernels, matrices, embedding tables (also of positions); a tied one is listed once.
    - `gamma_last`, `gamma_down`, `gamma_stem`, `gamma_other`: the γ of a norm, by the norm's role. A γ that
      several norms share has the role of the first of them in the map.
    - `gains`: factors per output channel of a standardized or normalized weight, and per row of one of more axes.
    - `layer_scale`: factors on activations per channel, per head, or per head and channel, γ of DyT and Derf among
      them, decays of state-space models (Mamba's A, RWKV's), and weights of a fusion [n, 2].
    - `biases`: biases, β, tables of attention biases, and whatever else a norm learns beside its γ, such as the
      threshold of a fused activation.
    - `scalars`: multipliers of one element (SkipInit, ReZero, a logit scale, α of DyT) and biases (Fixup, s of Derf).
    - `temperatures`: learned factors on the input of a softmax (one element, or one for each head) and factors of one
      element on the network's outputs, such as the logit scale of CLIP, or the logarithm of such a factor.
    - `rest`: slopes of activations (PReLU), tokens and positions with shape [1, …] for any batch, and vectors of
      unknown use.

    A parameter that no layer reads (its module did not run, or only looks up rows) has the group of the parameter
    with the same name in modules of its class that did run, or else a group by its class and shape. The γ of such a
    norm is `gamma_other`.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    modules = dict(model.named_modules(remove_duplicate=False))
    read = _read_by_layers(residual_map, named, modules)
    read |= {key: role for key, role in _elementwise(residual_map, named) if read.get(key, "weights") == "weights"}
    read |= dict.fromkeys(_temperatures(residual_map, named), "temperatures")
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
    """Return the group of every parameter that a layer reads, by the id of the parameter."""
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
    # Learned tensors of positions are added too, but are not vectors.
    for operation in residual_map.flow.operations:
        for parameter in map(named.__getitem__, operation.added):
            if parameter.numel() == max(parameter.shape, default=1) > 1:
                others.setdefault(id(parameter), "biases")
    return others | gammas


def _elementwise(residual_map: ResidualMap, named: Mapping[str, nn.Parameter]) -> Iterator[tuple[int, str]]:
    """Yield the ids and groups of parameters with two axes that are not matrices.

    They are factors of activations alone, as the decays of a state-space model or weights of a fusion, or they scale
    the rows of a weight of more axes. With three axes or more, factors are filters.
    """
    operations = residual_map.flow.operations
    elsewhere = {name for at in operations if at.name not in _PRODUCTS for name in at.factors}
    for operation in operations:
        for name in operation.factors:
            shape = named[name].shape
            others = [named[other].shape for other in operation.factors if named[other].dim() > len(shape)]
            if operation.name in _PRODUCTS and name not in elsewhere and sum(size > 1 for size in shape) == 2:
                yield id(named[name]), "layer_scale"
            elif operation.name in WEIGHT and len(shape) > 1 and shape in [other[: len(shape)] for other in others]:
                yield id(named[name]), "gains"


def _of_gamma(layer: Layer, gamma: Tensor, residual_map: ResidualMap) -> str:
    if layer.kind == "norm":
        return f"gamma_{residual_map.norms[layer.path]}"
    if gamma.numel() == 1:
        return "scalars"
    if layer.kind == "direction":
        return "gamma_other"
    # A factor for every position and channel, such as a filter in the frequency domain, is a weight.
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
    """Return the groups of the parameters that layers read, by class of the module and name of the parameter."""
    known: dict[tuple[type[nn.Module], str], str] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            group = read.get(id(parameter))
            if group is not None:
                known.setdefault((type(module), name), "gamma_other" if group.startswith("gamma") else group)
    return known


def _own_part(module: nn.Module, name: str, parameter: Tensor) -> str | None:
    """Return the group of a parameter that an edit of this library added, or None for others."""
    own = (ScalarAffine, ShiftedActivation, Pointwise, ResidualSum)
    if not isinstance(module, own) or name == "bias" or (name == "weight" and not isinstance(module, Pointwise)):
        return None
    if name == "gain":
        return "gains"
    return "layer_scale" if name == "layer_scale" or parameter.numel() > 1 else "scalars"


def _by_class(module: nn.Module, name: str, parameter: Tensor, norm_role: str) -> str:
    # Names such as bias_ih_l0 (recurrent), in_proj_bias (attention), relative_position_bias_table (window attention).
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
    # With a first axis of length 1, for any batch, it is a class token or an embedding of positions.
    is_matrix = parameter.numel() > max(parameter.shape) and parameter.shape[0] != 1
    return "weights" if is_matrix else "rest"


def _temperatures(residual_map: ResidualMap, named: Mapping[str, nn.Parameter]) -> Iterator[int]:
    """Yield the ids of learned factors on the input of a softmax, and of factors of one element on the outputs."""
    flow = residual_map.flow
    for index, operation in enumerate([] if flow is None else flow.operations):
        if flow is None or operation.name not in ("mul", "div") or len(operation.parents) != 1:
            continue
        for parameter in map(named.__getitem__, operation.factors):
            is_single = parameter.numel() == 1
            # A γ has its channels on the last axis, a temperature of each head has one element there.
            of_heads = parameter.dim() > 1 and parameter.shape[-1] == 1 and parameter.numel() == max(parameter.shape)
            if (is_single or of_heads) and _scales_choices(flow, index, outputs=is_single):
                yield id(parameter)


def _scales_choices(flow: Dataflow, index: int, *, outputs: bool) -> bool:
    """Whether the result of an operation reaches a softmax, or the outputs, without a layer in between."""

    def passes(reader: int) -> bool:
        operation = flow[reader]
        is_product = operation.name in WEIGHT and not operation.parameters
        return is_product or (operation.name in _PASSING and len(operation.parents) == 1)

    return any(
        (outputs and at in flow.outputs)
        or any(flow[reader].name in SOFTMAX | LOG_SOFTMAX | ATTENTION for reader in flow.consumers[at])
        for at in reachable([index], lambda at: filter(passes, flow.consumers[at]))
    )
