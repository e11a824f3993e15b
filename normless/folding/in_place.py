"""Activations and residual sums of a network that overwrite what nothing else reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping
from typing import Any, TypeVar

from torch import nn
from torch.fx import GraphModule, Node

from normless.arguments import carried_inputs, forward_arguments, require_network
from normless.folding.constants import ConstantActivation
from normless.folding.frozen_norms import replace_modules
from normless.lifting import in_mode
from normless.nn import ResidualSum, ShiftedActivation
from normless.nn.affine import of_class
from normless.nn.in_place import InPlace, InPlaceReLU
from normless.residual.exporting import exported
from normless.residual.operations import ACTIVATION, CONVOLUTION, LAYOUT
from normless.residual.reader import modules_around, operation_name

# They return a tensor in memory of its own that they do not need for their backward pass.
_NEW = CONVOLUTION | {"linear", "addmm", "bmm", "matmul", "add", "sub", "mul", "addcmul", "batch_norm"}
# They may return what they read, or a view of all of it.
_SAME = LAYOUT | {"dropout", "feature_dropout"}

Model = TypeVar("Model", bound=nn.Module)


def train_in_place(model: Model, *inputs: Any, example_inputs: Any = None, **kwargs: Any) -> Model:
    """Let ReLUs and residual sums of a network overwrite, in training, what nothing else reads; return the network.

    Values and gradients stay; it takes less time and fewer new tensors. A ReLU, one with Fixup's biases or a residual
    sum, where it is a module, overwrites its operand if that was computed in the same call of the module around it,
    by a layer whose backward pass does not read it, and no other operation reads it. To be called after `convert`.

    Operands are kept, as before, while a module there carries hooks, once another module takes the place of the one
    that computes them, in eval mode or without gradients, and under compilers, exports, `torch.func`, forward-mode
    differentiation and modes of torch. `module.inplace` says whether one works in place now, and `module.inplace =
    False` ends it.

    Args:
        model: the network; its modules change, parameters and their names do not.
        inputs, kwargs: what its forward takes, by position and by name; those that a converted network remembers if
            left out.
        example_inputs: in the place of `inputs` and `kwargs`: a tensor, a tuple of positional or a dictionary of
            keyword arguments.

    Raises:
        UnresolvedStructureError: the network cannot be exported on these inputs.
        ValueError: there are no example inputs.
    """
    require_network(model)
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if not (inputs or kwargs):
        inputs, kwargs = carried_inputs(model)
    if not (inputs or kwargs):
        raise ValueError("Which tensors nothing else reads is found out on example inputs: pass a batch.")
    with in_mode(model, training=True):
        work_in_place(model, inputs, kwargs, in_training=True)
    return model


def work_in_place(
    model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], in_training: bool = False
) -> None:
    """Let ReLUs and residual sums overwrite an operand wherever they run, if no other operation or caller sees it.

    It must be computed by the forward code that calls the module, or by a module called there.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    runs: dict[nn.Module, set[tuple[str, ...]]] = defaultdict(set)
    callers: dict[nn.Module, set[tuple[nn.Module, nn.Module] | None]] = defaultdict(set)
    for part in exported(model, inputs, kwargs).graph_module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            *around, path = _units(node, modules)
            module = modules.get(path)
            if module is None or not around:
                continue
            runs[module].add(_calls(node))
            operand = _operand(node, module, modules)
            if isinstance(operand, Node):
                ends = (modules[around[-1]], modules[_units(operand, modules)[-1]])
                is_own = is_private(operand, _calls(node)[: len(around)], _NEW if in_training else _NEW | ACTIVATION)
                callers[module].add(ends if is_own else None)
    # One module may run at several places.
    proven = {module: pair for module, (pair, *others) in callers.items() if pair is not None and not others}
    relus: dict[nn.Module, nn.Module] = {
        module: of_class(module, InPlaceReLU) for module in proven if type(module) is nn.ReLU
    }
    replace_modules(model, relus)
    for module, (caller, source) in proven.items():
        if isinstance(module, ConstantActivation) and len(runs[module]) == len(runs[source]) == 1:
            module.move_shift(source)
        one = relus.get(module, module)
        assert isinstance(one, InPlace)
        one.overwrite_in(caller, relus.get(source, source), in_training)


def _units(node: Node, modules: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """The modules whose forward runs a node, outermost first; what an activation with biases calls is part of it."""
    paths = modules_around(node)
    ends = (at for at, path in enumerate(paths, 1) if isinstance(modules.get(path), ShiftedActivation))
    return paths[: next(ends, len(paths))]


def _operand(node: Node, module: nn.Module | None, modules: Mapping[str, nn.Module]) -> Any:
    """What a node of a ReLU or a sum could overwrite; None for any other node."""
    name = operation_name(node)
    if type(module) is nn.ReLU and name == "relu":
        return node.args[0]
    if isinstance(module, ResidualSum) and name == "add":
        return node.args[module.skip_factor == 1]
    # What a module computes by itself it overwrites anyway.
    first = node.args[0] if isinstance(module, InPlace) and name in {"relu", "mul", "add", "clamp"} else None
    return first if isinstance(first, Node) and _units(first, modules) != _units(node, modules) else None


def is_private(tensor: Node, call: tuple[str, ...], new: Container[str] = _NEW | ACTIVATION) -> bool:
    """Whether one node alone reads a tensor, which one of the operations `new` made for it in a call of a module."""
    while len(tensor.users) == 1 and _calls(tensor)[: len(call)] == call:
        name = operation_name(tensor)
        if name not in _SAME and not name.endswith("_"):
            return name in new
        (tensor, *_) = tensor.all_input_nodes
    return False


def _calls(node: Node) -> tuple[str, ...]:
    """The calls of modules that a node runs in, outermost first; each has a name of its own."""
    return tuple(node.meta.get("nn_module_stack") or ())
