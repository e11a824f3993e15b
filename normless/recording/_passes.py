"""Record one forward pass of a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from normless.errors import UnresolvedStructureError
from normless.recording._calls import Call, Recorder
from normless.recording._distributions import unvalidated
from normless.recording._failures import explained, hidden_submodule
from normless.recording._tape import Tape
from normless.recording._values import ReadNumber
from normless.state import below_autograd, collection_paused, quiet, untouched

_DERIVATIVES = (torch.autograd.grad, Tensor.backward)
# Functions that read the values of a tensor without an operation.
_READS = {"tolist", "numpy", "array", "dlpack"}


def recorded(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], *, scripted: bool = False) -> Tape:
    """Run a network in its mode, and return the tape of the pass.

    The pass leaves parameters, buffers, attributes, gradients, inputs and random states as they were.

    Args:
        model: the network.
        inputs: the positional arguments of its forward.
        kwargs: the keyword arguments of its forward.
        scripted: whether a part of the network may be TorchScript, whose operations are those of the module around
            it.

    Raises:
        InputsError: a layer does not take its input.
        UnresolvedStructureError: the forward pass fails, or a part of the network is TorchScript or has no sizes yet.
    """
    modules = dict(model.named_modules())
    tensors = {name: ("buffer", tensor) for name, tensor in model.named_buffers()}
    tensors |= {name: ("parameter", tensor) for name, tensor in model.named_parameters()}
    _refuse_unreadable(modules, tensors, scripted)
    places = _Places(tensors)
    tape = places.tape
    try:
        with collection_paused(), untouched(model, inputs, kwargs, values=False), quiet(), below_autograd():
            for tensor in tensors_in([list(inputs), list(kwargs.values())]):
                tape.add_root(tensor, "input")
            try:
                with unvalidated(), tape, places.following(model):
                    output = model(*inputs, **kwargs)
                tape.returns_tensor = isinstance(output, Tensor)
                tape.outputs = [tape.node_of(tensor) for tensor in tensors_in(output)]
            finally:
                tape.end()
                # The tape holds the recorder too.
                del places.tape
        if not tape.outputs:
            raise TypeError("forward returned neither a tensor nor a structure that contains a tensor.")
    except Exception as error:
        raise explained(model, error, {path for node in tape.nodes for path in node.modules}) from error
    return tape


def _refuse_unreadable(
    modules: Mapping[str, nn.Module], tensors: Mapping[str, tuple[str, Tensor]], allows_scripted: bool
) -> None:
    """Raise an UnresolvedStructureError for a network with parts that cannot be followed or have no sizes yet."""
    scripted = next((path for path, module in modules.items() if isinstance(module, torch.jit.ScriptModule)), None)
    if scripted is not None and not allows_scripted:
        raise UnresolvedStructureError(
            f"{scripted or 'This network'} is TorchScript, whose forward code cannot be followed and which no edit "
            "can change. Map the module from which it was scripted."
        )
    if hidden := hidden_submodule(modules):
        raise UnresolvedStructureError(f"{hidden}, so that code gets the method. Rename the submodule.")
    lazy = next((name for name, (_, tensor) in tensors.items() if is_lazy(tensor)), None)
    if lazy is not None:
        raise UnresolvedStructureError(
            f"{lazy} has no sizes yet: a lazy layer gets them in its first pass. Run the network once, then map it."
        )


class _Places(Recorder):
    """Note the call in forward code that makes the operations on a tape; keep torch off its fused paths."""

    def __init__(self, tensors: Mapping[str, tuple[str, Tensor]]) -> None:
        super().__init__()
        self.tape = Tape(tensors, self)

    def made(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if call.name == "item" and args[0].is_floating_point():
            return self._read(*args)
        if call.name in _READS and self.tape.node_of(args[0]).active:
            self.tape.follows_values = True
        if call.name == "set" and call.function == Tensor.data.__set__:  # type: ignore[attr-defined]
            return self.tape.replace_data(*args)
        if call.function in _DERIVATIVES or call.name in ("make_dual", "unpack_dual"):
            return self._derivative(call, args, kwargs)
        return call.function(*args, **kwargs)

    def _derivative(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Differentiate; where the recorder runs below autograd, tensors stand for the derivatives."""
        try:
            result = call.function(*args, **kwargs)
            if call.name != "unpack_dual" or result[1] is not None:
                return result
        except RuntimeError:
            pass
        outputs = [*tensors_in(kwargs["outputs"] if "outputs" in kwargs else args[0])]
        if call.name == "make_dual":
            return args[0]
        if call.name == "unpack_dual":
            return args[0], self.tape.differentiated(outputs, args[0])
        if call.name == "grad":
            inputs = kwargs["inputs"] if "inputs" in kwargs else args[1]
            return tuple(self.tape.differentiated(outputs, each) for each in tensors_in(inputs))
        for each in tensors_in(kwargs.get("inputs") or self.tape.leaves()):
            each.grad = self.tape.differentiated(outputs, each)
        return None

    def _read(self, tensor: Tensor) -> Any:
        """Return the number in a tensor; if it depends on the inputs, it notes when it decides something."""
        tape = self.tape
        was, tape.only_reads = tape.only_reads, True
        try:
            value = tensor.item()
        finally:
            tape.only_reads = was
        decides = partial(setattr, tape, "follows_values", True)
        return ReadNumber.of(value, decides) if tape.node_of(tensor).active else value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Iterate over the tensors in a nested value, including those of data classes and namespaces."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) or isinstance(leaf, SimpleNamespace):
            yield from tensors_in(list(vars(leaf).values()))
