"""What kind of layer a module is, by its class or by what it computes, and how to call it in a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from normless.nn import FrozenBatchNorm, Pointwise, ScalarAffine, ShiftedActivation
from normless.residual.blocks import Kind, Layer
from normless.residual.formulas import NORM_PARTS, forms_root
from normless.residual.graph import Operation
from normless.residual.operations import ACTIVATION, ELEMENTWISE, LAYOUT, NORM
from normless.residual.sub_batches import affine_of_evaluation, is_sub_batch_norm

NORMS: tuple[type[nn.Module], ...] = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_NOT_ELEMENTWISE = (nn.MultiheadAttention, nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.GLU)
ACTIVATIONS: tuple[type[nn.Module], ...] = (
    ShiftedActivation,
    Pointwise,
    *({getattr(nn, name) for name in nn.modules.activation.__all__} - {*_NOT_ELEMENTWISE}),
)
_CLASSES: dict[Kind, tuple[type[nn.Module], ...]] = {
    "weight": (_ConvNd, nn.Linear, nn.Bilinear),
    "norm": (*NORMS, FrozenBatchNorm),
    "activation": ACTIVATIONS,
}
_FACTORS = {"mul", "div", "addcmul"}
_NONLINEAR = ACTIVATION | {"pow", "square", "sqrt", "exp", "erf", "abs", "where", "maximum"}


def kind_of(module: nn.Module) -> Kind | None:
    """`weight`, `norm`, `activation` (elementwise), `dropout` (of a rate above 0), or None for all else."""
    if isinstance(module, _DropoutNd):
        return "dropout" if module.p > 0 else None
    return next((kind for kind, classes in _CLASSES.items() if isinstance(module, classes)), None)


def layer_of(path: str, module: nn.Module, source: str | None) -> Layer | None:
    """The layer that a module of torch's own kinds, or of ours, is; None for any other."""
    kind = kind_of(module)
    if kind is None and is_sub_batch_norm(module):
        named = {id(one): f"{path}.{name}" for name, one in module.named_parameters()}
        gamma, beta = (named.get(id(one)) for one in affine_of_evaluation(module))
        read = tuple(name for name in (gamma, beta) if name is not None)
        return Layer(path, "norm", source, 0, False, gamma, read, describe(module), shifts=read[gamma is not None :])
    if kind is None:
        return None
    names = tuple(f"{path}.{name}" for name, one in module._parameters.items() if one is not None)
    vectors = ("gain", "layer_scale") if isinstance(module, ScalarAffine) else ("weight",) if kind == "norm" else ()
    present = [name for vector in vectors if (name := f"{path}.{vector}") in names]
    gamma = present[0] if len(present) == 1 else None
    in_place = bool(getattr(module, "inplace", False))
    shifts = tuple(name for name in names if name.endswith("bias"))
    return Layer(path, kind, source, 0, False, gamma, names, describe(module), in_place=in_place, shifts=shifts)


def describe(module: nn.Module) -> str:
    """A few words for a table: `conv 3×3 16→32 /2`, `batch norm 32`, `ReLU`."""
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
    """A description after its article: `a batch norm 8`, `an instance norm 8`."""
    return f"{'an' if words[:1].lower() in 'aeiou' else 'a'} {words}"


def window_size(pool: nn.Module) -> int:
    """The number of elements in a window of a max or average pooling."""
    kernel: Any = pool.kernel_size
    axes = next(n for n in (1, 2, 3) if isinstance(pool, (getattr(nn, f"MaxPool{n}d"), getattr(nn, f"AvgPool{n}d"))))
    return prod(kernel) if isinstance(kernel, tuple) else int(kernel) ** axes


def computed_kind(operations: Sequence[Operation]) -> Kind | None:
    """What a module is that runs exactly these operations: a norm, an activation, a layer scale, or none.

    A norm divides activations by a root of their own statistics, or of stored ones (frozen batch norm). An
    activation is elementwise and not linear; a vector of slopes may be learned. A layer scale multiplies by a
    parameter and may add one.
    """
    names = {operation.name for operation in operations}
    learned = [operation for operation in operations if operation.parameters]
    if learned and names - LAYOUT <= {"mul", "add", "addcmul"} and all(len(one.parents) == 1 for one in operations):
        return "scale" if any(one.name != "add" for one in learned) else None
    scales = [operation for operation in operations if operation.name in _FACTORS]
    is_frozen = any(fixed.rooted and fixed.buffers for operation in scales for fixed in operation.fixed)
    if names <= NORM_PARTS and (names & NORM or (scales and forms_root(names)) or is_frozen):
        return "norm"
    if names <= ELEMENTWISE and names & _NONLINEAR and names - LAYOUT:
        return "activation"
    return None


def gamma_of(operations: Sequence[Operation]) -> str | None:
    """The vector by which a norm's operations scale its channels, by its qualified name; None without one."""
    scaling = (one for one in reversed(operations) if one.name in NORM | {"mul", "addcmul"})
    return next((name for operation in scaling for name in operation.factors), None)


def embedding_weights(model: nn.Module) -> set[int]:
    """The `id` of every weight of an embedding."""
    return {id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))}
