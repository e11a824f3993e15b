"""Let activations and residual sums overwrite inputs that nothing else reads, in evaluation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import nn

from normless.affine.constants import ConstantActivation
from normless.affine.maps import replace_modules
from normless.nn import ResidualSum
from normless.nn.affine import of_class
from normless.nn.in_place import InPlace, InPlaceReLU
from normless.residual.graph import Dataflow, Operand
from normless.residual.operations import LAYOUT, NEW_MEMORY
from normless.residual.reader import flow_of

# These may return their input or a view of all of it.
_SAME = LAYOUT | {"dropout", "feature_dropout"}


def work_in_place(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Let ReLUs and residual sums overwrite an operand if no other operation or caller sees it in any run.

    The operand must be computed by the forward code that calls the module, or by a module called there.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    runs: dict[nn.Module, set[tuple[int, ...]]] = defaultdict(set)
    callers: dict[nn.Module, set[tuple[nn.Module, nn.Module] | None]] = defaultdict(set)
    flow = flow_of(model, inputs, kwargs)
    for at, operation in enumerate(flow.operations):
        *around, path = operation.modules
        module = modules.get(path)
        if module is None or not around:
            continue
        runs[module].add(operation.runs)
        operand = _operand(flow, at, module)
        if operand is not None:
            ends = (modules[around[-1]], modules[flow[operand].module])
            callers[module].add(ends if is_private(flow, operand, at) else None)
    for module, (pair, *others) in callers.items():
        # A module may run at several places.
        if pair is None or others:
            continue
        caller, _ = pair
        if isinstance(module, ConstantActivation):
            path = _through_sums(module, callers)
            if all(len(runs[passed]) == 1 for passed in path):
                module.move_shift(path[-1])
        relu = of_class(module, InPlaceReLU) if type(module) is nn.ReLU else module
        replace_modules(model, {module: relu})
        assert isinstance(relu, InPlace)
        relu.overwrite_in(caller)


def _through_sums(module: nn.Module, callers: Mapping[nn.Module, set[tuple[nn.Module, nn.Module] | None]]) -> Any:
    """Return a module, the plain sums before it and the module before those, each read by the next alone."""
    path = [module]
    while len(pairs := callers.get(path[-1], set())) == 1 and (pair := next(iter(pairs))) is not None:
        path.append(pair[1])
        if not (isinstance(path[-1], ResidualSum) and path[-1].is_plain):
            break
    return path


def _operand(flow: Dataflow, at: int, module: nn.Module) -> int | None:
    """Return the operand that an operation of a ReLU or a sum could overwrite, None for other operations."""
    operation = flow[at]
    place = 0
    if operation.in_place:
        return None
    if isinstance(module, ResidualSum) and operation.name == "add":
        place = int(module.skip_factor == 1)
    elif not (type(module) is nn.ReLU and operation.name == "relu") and not (
        isinstance(module, InPlace) and operation.name in {"mul", "add", "clamp"}
    ):
        return None
    operand = operation.arguments[place]
    if not isinstance(operand, Operand):
        return None
    # A module always overwrites its own intermediate results.
    is_own = isinstance(module, InPlace) and flow[operand.index].modules == operation.modules
    return None if is_own else operand.index


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
