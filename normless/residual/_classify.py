"""Classify modules as layers, by their class or by the operations that they run."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from normless.nn import FreezableNorm, FrozenBatchNorm
from normless.nn._activation import Pointwise, ShiftedActivation
from normless.residual._blocks import LayerKind
from normless.residual._formulas import normalizes
from normless.residual._graph import Operation
from normless.residual._operations import ELEMENTWISE, LAYOUT, NONLINEAR

NORMS: tuple[type[nn.Module], ...] = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_NOT_ELEMENTWISE = (nn.MultiheadAttention, nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.GLU)
ACTIVATIONS: tuple[type[nn.Module], ...] = (
    ShiftedActivation,
    Pointwise,
    *({getattr(nn, name) for name in nn.modules.activation.__all__} - {*_NOT_ELEMENTWISE}),
)
_CLASSES: dict[LayerKind, tuple[type[nn.Module], ...]] = {
    "weight": (_ConvNd, nn.Linear, nn.Bilinear),
    "norm": (*NORMS, FrozenBatchNorm, FreezableNorm),
    "activation": ACTIVATIONS,
}


def kind_of(module: nn.Module) -> LayerKind | None:
    """Return the kind of a module by its class: `weight`, `norm`, `activation`, `dropout` (rate above 0) or None."""
    if isinstance(module, _DropoutNd):
        return "dropout" if module.p > 0 else None
    return next((kind for kind, classes in _CLASSES.items() if isinstance(module, classes)), None)


def computed_kind(operations: Sequence[Operation]) -> LayerKind | None:
    """Return the kind of a module that runs exactly these operations: a norm, an activation, a layer scale or None.

    `normalizes` defines a norm. An activation is elementwise and nonlinear, possibly with learned slopes. A layer
    scale multiplies by a parameter and may add another.
    """
    names = {operation.name for operation in operations}
    learned = [operation for operation in operations if operation.parameters]
    is_affine = bool(learned) and names - LAYOUT <= {"mul", "add", "addcmul"}
    if is_affine and all(len(operation.parents) == 1 for operation in operations):
        return "scale" if any(operation.name != "add" for operation in learned) else None
    if normalizes(operations):
        return "norm"
    if names <= ELEMENTWISE and names & NONLINEAR and names - LAYOUT:
        return "activation"
    return None


def embedding_weights(model: nn.Module) -> set[int]:
    """Return the `id` of each embedding weight."""
    return {id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))}
