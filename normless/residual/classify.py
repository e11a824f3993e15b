"""What kind of layer a module is, and how to call it in a table."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from normless.nn import ScalarAffine, ShiftedActivation
from normless.residual.blocks import Kind, Layer

NORMS: tuple[type[nn.Module], ...] = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_NOT_ELEMENTWISE = (nn.MultiheadAttention, nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.GLU)
ACTIVATIONS: tuple[type[nn.Module], ...] = (
    ShiftedActivation,
    *(
        member
        for member in vars(nn.modules.activation).values()
        if isinstance(member, type)
        and issubclass(member, nn.Module)
        and member is not nn.Module
        and not issubclass(member, _NOT_ELEMENTWISE)
    ),
)


def kind_of(module: nn.Module) -> Kind | None:
    """`weight`, `norm`, `activation` (elementwise), `dropout` (of a rate above 0), or None for all else."""
    if isinstance(module, (_ConvNd, nn.Linear, nn.Bilinear)):
        return "weight"
    if isinstance(module, NORMS):
        return "norm"
    if isinstance(module, ACTIVATIONS):
        return "activation"
    if isinstance(module, _DropoutNd) and module.p > 0:
        return "dropout"
    return None


def layer_of(path: str, module: nn.Module, source: str | None) -> Layer | None:
    """The layer that a module of torch's own kinds, or of ours, is; None for any other."""
    kind = kind_of(module)
    if kind is None:
        return None
    names = [f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)]
    vectors = ("gain", "layer_scale") if isinstance(module, ScalarAffine) else ("weight",) if kind == "norm" else ()
    present = [name for vector in vectors if (name := f"{path}.{vector}") in names]
    gamma = present[0] if len(present) == 1 else None
    in_place = bool(getattr(module, "inplace", False))
    return Layer(
        path, kind, source, gamma=gamma, parameters=tuple(names), description=describe(module), in_place=in_place
    )


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
        return f"{_words(type(module).__name__)} {module.num_features}"
    if isinstance(module, ShiftedActivation):
        return f"shifted {describe(module.activation)}"
    return type(module).__name__


def _words(name: str) -> str:
    """`GhostBatchNorm2d` as `ghost batch norm`."""
    stem = name.rstrip("123d")
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in stem).strip()
