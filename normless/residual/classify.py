"""What kind of layer a module is, by its class or by what it computes, and how to call it in a table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from normless.nn import Pointwise, ScalarAffine, ShiftedActivation
from normless.residual.blocks import Kind, Layer
from normless.residual.graph import Dataflow, Fixed, Operand, Operation
from normless.residual.operations import ACTIVATION, ELEMENTWISE, LAYOUT, NORM, REDUCTION, ROOT

NORMS: tuple[type[nn.Module], ...] = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_NOT_ELEMENTWISE = (nn.MultiheadAttention, nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.GLU)
ACTIVATIONS: tuple[type[nn.Module], ...] = (
    ShiftedActivation,
    Pointwise,
    *({getattr(nn, name) for name in nn.modules.activation.__all__} - {*_NOT_ELEMENTWISE}),
)
_CLASSES: dict[Kind, tuple[type[nn.Module], ...]] = {
    "weight": (_ConvNd, nn.Linear, nn.Bilinear),
    "norm": NORMS,
    "activation": ACTIVATIONS,
}
_NORM_PARTS = ELEMENTWISE | REDUCTION | NORM | ROOT | {"expand", "expand_as", "split", "chunk", "slice"}
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
    if kind is None:
        return None
    names = tuple(f"{path}.{name}" for name, _ in module.named_parameters(recurse=False))
    vectors = ("gain", "layer_scale") if isinstance(module, ScalarAffine) else ("weight",) if kind == "norm" else ()
    present = [name for vector in vectors if (name := f"{path}.{vector}") in names]
    gamma = present[0] if len(present) == 1 else None
    in_place = bool(getattr(module, "inplace", False))
    return Layer(path, kind, source, 0, False, gamma, names, describe(module), in_place=in_place)


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
    if names <= _NORM_PARTS and (names & NORM or (scales and _roots_statistics(names)) or is_frozen):
        return "norm"
    if names <= ELEMENTWISE and names & _NONLINEAR and names - LAYOUT:
        return "activation"
    return None


def _roots_statistics(names: set[str]) -> bool:
    """Whether operations of these names form statistics and take a root of them."""
    roots = names & ROOT
    return bool(roots) and bool(names & REDUCTION or roots - {"sqrt", "rsqrt", "pow"})


def gamma_of(operations: Sequence[Operation]) -> str | None:
    """The vector by which a norm's operations scale its channels, by its qualified name; None without one."""
    for operation in reversed(operations):
        if operation.name in NORM or operation.name in {"mul", "addcmul"}:
            # addcmul(β, γ, x) adds its first argument; a norm's own operation takes γ before β.
            arguments = operation.arguments[1:] if operation.name == "addcmul" else operation.arguments
            for argument in arguments:
                if isinstance(argument, Fixed) and argument.parameters:
                    name = argument.parameters[0]
                    # A norm with a bias and no weight.
                    return None if operation.name in NORM and name.endswith(("bias", "beta")) else name
    return None


def inline_norm(flow: Dataflow, index: int) -> list[int]:
    """The operations of a norm in forward code, γ · x / root(statistics of x), by its product with γ; or none."""
    operation = flow[index]
    if operation.name != "mul" or len(operation.parents) != 1 or not operation.parameters:
        return []
    (quotient,) = operation.parents
    scaled: list[int] = []
    while flow[quotient].name in LAYOUT or (
        flow[quotient].name in {"mul", "div"} and len(flow[quotient].parents) == 1
    ):
        scaled.append(quotient)
        (quotient,) = flow[quotient].parents
    if flow[quotient].name not in {"mul", "div"} or len(flow[quotient].parents) != 2:
        return []
    first, second = (argument.index for argument in flow[quotient].arguments[:2] if isinstance(argument, Operand))
    for value, divisor in ((first, second), (second, first)):
        chain = _statistics(flow, divisor, value)
        if chain:
            return [*sorted(chain), quotient, *reversed(scaled), index]
    return []


def _statistics(flow: Dataflow, end: int, value: int) -> list[int]:
    """The operations from `value`, or what it was made of, to a root of its statistics at `end`."""
    chain = [end]
    # Of expand_as(statistics, x) the second argument gives the shape alone.
    while len(chain) <= 10 and (len(flow[chain[-1]].parents) == 1 or flow[chain[-1]].name == "expand_as"):
        parent = flow[chain[-1]].parents[0]
        if flow.depends(value, parent):
            return chain if _roots_statistics({flow[index].name for index in chain}) else []
        chain.append(parent)
    return []
