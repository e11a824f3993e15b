"""Activations with numbers instead of scalar parameters; what may overwrite inputs that nothing else reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from normless.affine._maps import replace_modules
from normless.nn import ResidualSum
from normless.nn._affine import of_class
from normless.nn._in_place import InPlace, InPlaceReLU
from normless.recording._passes import recorded
from normless.residual._graph import Dataflow, Operand
from normless.residual._operations import LAYOUT, NEW_MEMORY
from normless.residual._reader import read_dataflow

# These may return their input or a view of all of it.
_SAME = LAYOUT | {"dropout", "feature_dropout"}
_TAKE_SHIFT = {nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear}


class ConstantActivation(InPlace, nn.Module):
    """Compute φ(s·x + b₁) + b₂ with three numbers; a ReLU as max(s·x + (b₁ + b₂), b₂)."""

    def __init__(self, activation: nn.Module, scale: float, before: float, after: float) -> None:
        super().__init__()
        self.activation, self.scale, self.before, self.after = activation, scale, before, after

    def move_shift(self, layer: Any) -> None:
        """Move the shift of a ReLU to the bias of the layer that computes x, shape (B, out, …), if possible."""
        if type(self.activation) is nn.ReLU and self.scale == 1 and type(layer) in _TAKE_SHIFT:
            weight: Tensor = layer.weight
            bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
            # A new parameter, since layers may share their bias.
            layer.bias = nn.Parameter(bias + (self.before + self.after), requires_grad=False)
            self.before = -self.after

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x."""
        is_own, is_relu = self.inplace, type(self.activation) is nn.ReLU
        shift = self.before + self.after if is_relu else self.before
        if self.scale != 1:
            x, is_own = (x.mul_(self.scale) if is_own else x * self.scale), True
        if shift:
            x, is_own = (x.add_(shift) if is_own else x + shift), True
        if is_relu:
            return x.clamp_(min=self.after) if is_own else x.clamp(min=self.after)
        y: Tensor = self.activation(x)
        return y + self.after if self.after else y


def work_in_place(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Let ReLUs and residual sums overwrite an operand if no other operation or caller sees it in any run.

    The operand must be computed by the forward code that calls the module, or by a module called there.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    runs: dict[nn.Module, set[tuple[int, ...]]] = defaultdict(set)
    # Of a module with an operand, what calls it and what computes the operand; None if others see that.
    ends: dict[nn.Module, set[tuple[nn.Module, nn.Module] | None]] = defaultdict(set)
    flow = read_dataflow(recorded(model, inputs, kwargs, scripted=True))
    for at, operation in enumerate(flow.operations):
        *around, path = operation.modules
        module = modules.get(path)
        if module is None or not around:
            continue
        runs[module].add(operation.runs)
        operand = _operand(flow, at, module)
        if operand is not None:
            pair = (modules[around[-1]], modules[flow[operand].module])
            ends[module].add(pair if is_private(flow, operand, at) else None)
    # A module may run at several places.
    private = {module: next(iter(pairs)) for module, pairs in ends.items() if len(pairs) == 1}
    for module, found in private.items():
        if found is None:
            continue
        if isinstance(module, ConstantActivation):
            passed = [module, found[1]]
            # Plain sums pass a shift on.
            while isinstance(total := passed[-1], ResidualSum) and total.is_plain and (before := private.get(total)):
                passed.append(before[1])
            if all(len(runs[each]) == 1 for each in passed):
                module.move_shift(passed[-1])
        relu = of_class(module, InPlaceReLU) if type(module) is nn.ReLU else module
        replace_modules(model, {module: relu})
        assert isinstance(relu, InPlace)
        relu.overwrite_in(found[0])


def _operand(flow: Dataflow, at: int, module: nn.Module) -> int | None:
    """Return the operand that an operation of a ReLU or a sum could overwrite, None for other operations."""
    operation = flow[at]
    is_sum = isinstance(module, ResidualSum) and operation.name == "add"
    is_relu = type(module) is nn.ReLU and operation.name == "relu"
    is_own = isinstance(module, InPlace) and operation.name in {"mul", "add", "clamp"}
    if operation.in_place or not (is_sum or is_relu or is_own):
        return None
    operand = operation.arguments[int(isinstance(module, ResidualSum) and is_sum and module.skip_factor == 1)]
    if not isinstance(operand, Operand):
        return None
    # A module always overwrites its own intermediate results.
    is_within = isinstance(module, InPlace) and flow[operand.index].modules == operation.modules
    return None if is_within else operand.index


def is_private(flow: Dataflow, tensor: int, reader: int) -> bool:
    """Whether one operation alone reads a tensor, which was computed in the same run of the module around it."""
    around = flow[reader].runs[:-1]
    while len(flow.consumers[tensor]) == 1 and tensor not in flow.outputs:
        operation = flow[tensor]
        if operation.runs[: len(around)] != around:
            return False
        if operation.name not in _SAME and not operation.in_place:
            return operation.name in NEW_MEMORY
        if not operation.parents:
            return False
        tensor = operation.parents[0]
    return False
