"""Let activations and residual sums overwrite inputs that nothing else reads, in evaluation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from normless.folding.constants import ConstantActivation
from normless.folding.frozen_norms import replace_modules
from normless.nn import ResidualSum
from normless.nn.affine import of_class
from normless.nn.in_place import InPlace, InPlaceReLU
from normless.residual.exporting import exported
from normless.residual.operations import LAYOUT, NEW_MEMORY
from normless.residual.reader import modules_around, operation_name

# These may return their input or a view of all of it.
_SAME = LAYOUT | {"dropout", "feature_dropout"}


def work_in_place(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Let ReLUs and residual sums overwrite an operand if no other operation or caller sees it in any run.

    The operand must be computed by the forward code that calls the module, or by a module called there.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    runs: dict[nn.Module, set[tuple[str, ...]]] = defaultdict(set)
    callers: dict[nn.Module, set[tuple[nn.Module, nn.Module] | None]] = defaultdict(set)
    for part in exported(model, inputs, kwargs).graph_module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            *around, path = modules_around(node)
            module = modules.get(path)
            if module is None or not around:
                continue
            runs[module].add(_calls(node))
            operand = _operand(node, module)
            if isinstance(operand, Node):
                ends = (modules[around[-1]], modules[modules_around(operand)[-1]])
                callers[module].add(ends if is_private(operand, node) else None)
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


def _operand(node: Node, module: nn.Module | None) -> Any:
    """Return the operand that a node of a ReLU or a sum could overwrite, None for other nodes."""
    name = operation_name(node)
    if type(module) is nn.ReLU and name == "relu":
        return node.args[0]
    if isinstance(module, ResidualSum) and name == "add":
        return node.args[module.skip_factor == 1]
    # A module always overwrites its own intermediate results.
    first = node.args[0] if isinstance(module, InPlace) and name in {"mul", "add", "clamp"} else None
    return first if isinstance(first, Node) and modules_around(first) != modules_around(node) else None


def is_private(tensor: Node, reader: Node) -> bool:
    """Whether only one node reads a tensor, which was computed in the same call of the module around the node."""
    call = _calls(reader)[:-1]
    while len(tensor.users) == 1 and _calls(tensor)[: len(call)] == call:
        name = operation_name(tensor)
        if name not in _SAME and not name.endswith("_"):
            return name in NEW_MEMORY
        (tensor, *_) = tensor.all_input_nodes
    return False


def _calls(node: Node) -> tuple[str, ...]:
    """Return unique names of the calls of modules around a node, outermost first."""
    return tuple(node.meta.get("nn_module_stack") or ())
