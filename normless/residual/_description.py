"""Describe a layer: its γ, its parameters, the call that makes it, and a few words for tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from normless.nn import FreezableNorm, ScalarAffine
from normless.nn._activation import Pointwise, ShiftedActivation
from normless.recording._calls import Call
from normless.residual._blocks import Layer
from normless.residual._classify import kind_of
from normless.residual._graph import Dataflow, Fixed, Operation
from normless.residual._names import Names
from normless.residual._operations import LAYOUT, NORM
from normless.residual._sub_batches import affine_of_evaluation, is_sub_batch_norm

# The number that distinguishes calls of a function in one module: relu_1.
_COUNTED = re.compile(r"_\d+$")


def described(layer: Layer, flow: Dataflow, indices: Sequence[int], names: Names) -> Layer:
    """Return a layer with the properties that follow from the operations of one of its runs, in order."""
    operations = [flow[index] for index in indices]
    parameters = [names.parameter(name) for operation in operations for name in operation.parameters]
    factors = {name for operation in operations for name in operation.factors}
    shifts = [name for operation in operations for name in operation.added if name not in factors]
    gamma = _gamma_of(operations) if layer.kind in ("norm", "scale") else None
    if layer.kind == "weight":
        gamma = _gain_of(operations[0], names)
    fixed = [constant for operation in operations for constant in operation.fixed]
    path, _, within = layer.path.partition(":")
    free = [name for constant in fixed for name, degree in constant.degrees if degree == 0 and layer.kind == "weight"]
    return replace(
        layer,
        gamma=None if gamma is None else names.parameter(gamma),
        parameters=tuple(dict.fromkeys(parameters)),
        shifts=tuple(dict.fromkeys(map(names.parameter, shifts))),
        description=(within if layer.kind in ("weight", "scale") else _COUNTED.sub("", within))
        or describe(names.modules[path]),
        in_place=any(operation.in_place for operation in operations),
        offset=next((constant.offset for constant in fixed if gamma in constant.parameters), 0.0),
        scale_free=tuple(map(names.parameter, free)),
        called=any(names.canonical(name) == path for name in operations[0].modules),
        made_by=_call_of(flow, indices) if within else None,
    )


def layer_of(path: str, module: nn.Module, source: str | None) -> Layer | None:
    """Return the layer of a module that torch or this package defines, None for any other module."""
    kind = kind_of(module)
    if kind is None and is_sub_batch_norm(module):
        named = {id(parameter): f"{path}.{name}" for name, parameter in module.named_parameters()}
        gamma, beta = (named.get(id(parameter)) for parameter in affine_of_evaluation(module))
        read = tuple(name for name in (gamma, beta) if name is not None)
        return Layer(path, "norm", source, 0, False, gamma, read, describe(module), shifts=read[gamma is not None :])
    if kind is None:
        return None
    names = tuple(f"{path}.{name}" for name, parameter in module._parameters.items() if parameter is not None)
    vectors = ("gain", "layer_scale") if isinstance(module, ScalarAffine) else ("weight",) if kind == "norm" else ()
    vectors = (module.gamma_name or "",) if isinstance(module, FreezableNorm) else vectors
    present = [name for vector in vectors if (name := f"{path}.{vector}") in names]
    gamma = present[0] if len(present) == 1 else None
    in_place = bool(getattr(module, "inplace", False))
    shift = module.beta_name or "." if isinstance(module, FreezableNorm) else "bias"
    shifts = tuple(name for name in names if name.endswith(shift))
    return Layer(path, kind, source, 0, False, gamma, names, describe(module), in_place=in_place, shifts=shifts)


def _call_of(flow: Dataflow, indices: Iterable[int]) -> Call | None:
    """Return the call in forward code that makes these operations and no others, or None."""
    calls = {flow[at].made_by for at in indices}
    call = calls.pop() if len(calls) == 1 else None
    others = {*flow.parts[call]}.difference(indices) if call is not None else ()
    return call if all(flow[at].name in LAYOUT for at in others) else None


def _gain_of(operation: Operation, names: Names) -> str | None:
    """Return the gain of a standardized weight: the only non-scalar besides the largest of its parameters."""
    weights = (constant for constant in operation.fixed if not {*operation.added}.issuperset(constant.parameters))
    weight = next(weights, Fixed())
    sizes = {name: names.parameters[name].numel() for name in weight.parameters}
    vectors = [name for name in sorted(sizes, key=lambda name: sizes[name])[:-1] if sizes[name] > 1]
    return vectors[0] if len(vectors) == 1 else None


def _gamma_of(operations: Sequence[Operation]) -> str | None:
    """Return the qualified name of the vector by which a norm scales its channels, or None."""
    scaling = (operation for operation in reversed(operations) if operation.name in NORM | {"mul", "addcmul"})
    return next((name for operation in scaling for name in operation.factors), None)


def describe(module: nn.Module) -> str:
    """Describe a module in a few words: `conv 3×3 16→32 /2`, `batch norm 32`, `ReLU`."""
    if isinstance(module, _ConvNd):
        size = "×".join(str(side) for side in module.kernel_size)
        stride = "" if max(module.stride) == 1 else f" /{max(module.stride)}"
        groups = "" if module.groups == 1 else f" groups {module.groups}"
        return f"conv {size} {module.in_channels}→{module.out_channels}{stride}{groups}"
    if isinstance(module, nn.Linear):
        return f"linear {module.in_features}→{module.out_features}"
    if isinstance(module, _NormBase):
        words = re.sub(r"\B([A-Z])", r" \1", type(module).__name__.rstrip("123d")).lower()
        return f"{words} {module.num_features}"
    if isinstance(module, Pointwise):
        return f"pointwise {module.function}"
    if isinstance(module, ShiftedActivation):
        return f"shifted {describe(module.activation)}"
    return type(module).__name__


def with_article(words: str) -> str:
    """Put an article before a description: `a batch norm 8`, `an instance norm 8`."""
    return f"{'an' if words[:1].lower() in 'aeiou' else 'a'} {words}"
