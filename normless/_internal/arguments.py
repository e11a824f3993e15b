"""Example inputs: the arguments of a network's forward, given separately or as a single value."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, signature
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from normless._internal.calling import missing_forward
from normless.errors import InputsError, NormlessError, UnresolvedStructureError

CallArguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of forward."""

CARRIED = "normless_example_inputs"
"""The attribute in which a converted network keeps the shapes of the example inputs of its conversion."""

SEVERAL_INPUTS = "pass several inputs one after another, as in (net, x, y), or together as example_inputs=(x, y)"
"""What to do where forward lacks an argument."""

# The names of the network inside its wrappers.
_WRAPPED = ("_orig_mod", "module")


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs (a tensor, a tuple, a mapping or None) as positional and keyword arguments."""
    if inputs is None or isinstance(inputs, Mapping):
        return (), dict(inputs or {})
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def forward_arguments(
    inputs: tuple[Any, ...], kwargs: Mapping[str, Any], example_inputs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of a function that takes them separately or as `example_inputs=`.

    Raises:
        ValueError: they were given both ways.
        InputsError: they are numbers or NumPy arrays, without a tensor.
    """
    positional, named = (inputs, dict(kwargs)) if example_inputs is None else arguments_of(example_inputs)
    if example_inputs is not None and (inputs or kwargs):
        raise ValueError("Expected example inputs as separate arguments or as example_inputs=…, got both.")
    _refuse_numbers(tree_leaves((positional, named)))
    return positional, named


def _refuse_numbers(leaves: Sequence[Any]) -> None:
    """Raise an InputsError for numbers and NumPy arrays without a tensor."""
    if not leaves or not all(isinstance(leaf, (int, float, np.ndarray)) for leaf in leaves):
        return
    if isinstance(leaves[0], np.ndarray):
        came, way = f"a NumPy array of shape {leaves[0].shape}", "torch.from_numpy(array)"
    else:
        came = "numbers: " + ", ".join(map(str, leaves[:4])) + (", …" if len(leaves) > 4 else "")
        way = "torch.tensor(numbers), or torch.randn(shape) if the numbers are a shape"
    raise InputsError(f"Expected tensors as example inputs, got {came}. Pass {way}.")


def inside_wrappers(model: nn.Module) -> nn.Module:
    """Return the network inside `torch.compile` and `DistributedDataParallel`."""
    while len(children := dict(model.named_children())) == 1 and (name := next(iter(children))) in _WRAPPED:
        model = children[name]
    return model


def require_network(model: object) -> None:
    """Raise a TypeError for anything but a network, and an UnresolvedStructureError for a TorchScript network."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected a network, a torch.nn.Module, got {model!r}.")
    if isinstance(model, torch.jit.ScriptModule):
        raise UnresolvedStructureError("This network is TorchScript; pass the module that it was scripted from.")


def inputs_missing(model: nn.Module, function: str, why: str = "") -> UnresolvedStructureError:
    """Return the error of a function that has to trace a network and got no example inputs."""
    return UnresolvedStructureError(
        f"A {type(model).__name__} {why}has to be traced: "
        f"pass example inputs, as in {function}(model, torch.randn(2, 3, 224, 224))."
    )


def applied(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a network or a loss; raise an InputsError if it does not take these arguments."""
    try:
        return function(*args, **kwargs)
    except (NormlessError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if isinstance(function, nn.Module) and (absent := missing_forward(function, error)):
            raise InputsError(absent) from error
        name = type(function).__name__ if isinstance(function, nn.Module) else getattr(function, "__name__", "loss")
        leaves = tree_leaves((args, kwargs))
        given = [f"{list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in leaves]
        problem = f"{name} does not take arguments {', '.join(given)}"
        advice = ""
        if "required positional argument" in str(error) and isinstance(function, nn.Module):
            advice = f"; {SEVERAL_INPUTS}"
        raise InputsError(f"{problem}, {type(error).__name__}: {error}{advice}") from error


def unfitting(name: str, layer: nn.Module, x: Any) -> InputsError | None:
    """Return the error of a weight layer whose input has another number of channels or features, or None."""
    unit = "in_features" if hasattr(layer, "in_features") else "in_channels"
    takes, weight = getattr(layer, unit, None), getattr(layer, "weight", None)
    if not isinstance(takes, int) or not isinstance(x, Tensor) or not isinstance(weight, Tensor):
        return None
    axis = x.dim() - weight.dim() + 1
    if not 0 <= axis < x.dim() or x.shape[axis] == takes:
        return None
    shape, unit = "×".join(map(str, x.shape)), unit.removeprefix("in_").removesuffix("s" if takes == 1 else "")
    what = f"{name.partition(',')[0]}, a {type(layer).__name__},"
    error = InputsError(f"{what} takes {takes} {unit}, and its input of shape {shape} has {x.shape[axis]}.")
    error.takes = takes
    return error


def carry_inputs(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Store the shapes and types of the example inputs in a network, so that they need not be given again."""
    setattr(model, CARRIED, tree_map_only(Tensor, partial(torch.empty_like, device="meta"), (inputs, kwargs)))


def carried_inputs(model: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return zeros of the shapes stored in a converted network, or the `example_inputs()` of a network that has them.

    They are on the network's device; for other networks there are no arguments.
    """
    shapes = vars(model).get(CARRIED)
    if shapes is None:
        own = getattr(model, "example_inputs", None)
        inputs, kwargs = arguments_of(own()) if callable(own) else ((), {})
        return on_device_of(model, inputs, kwargs)
    inputs, kwargs = tree_map_only(Tensor, partial(torch.zeros_like, device=device_of(model)), shapes)
    return inputs, kwargs


def carried_as_keywords(model: nn.Module) -> dict[str, Any] | None:
    """Return the example inputs stored in a converted network by argument name, or None if there are none."""
    inputs, kwargs = carried_inputs(model)
    return {**dict(zip(signature(model.forward).parameters, inputs, strict=False)), **kwargs} or None


def on_device_of(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the arguments with their tensors on the device of the network."""
    device = device_of(model)
    args, named = tree_map_only(Tensor, lambda tensor: tensor.to(device), (tuple(inputs), dict(kwargs)))
    return args, named


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a network's first parameter, or the CPU if it has no parameters."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the converted network inside wrappers with one child (DDP, compiled, Opacus), or else the module."""
    inner = model
    while CARRIED not in vars(inner):
        children = list(inner.children())
        if len(children) != 1:
            return model
        (inner,) = children
    return inner


def calls_of(model: nn.Module, batches: Any, most: int) -> list[CallArguments]:
    """Return the arguments of forward for each of at most `most` batches.

    Raises:
        ValueError: there is no batch, or `most` is below 1.
    """
    if most < 1:
        raise ValueError(f"Expected most_batches of 1 or more, got {most}.")
    single = isinstance(batches, (Tensor, Mapping)) or _is_call(model, batches)
    every = [batches] if single else list(islice(_iterable(batches), most))
    if not every:
        raise ValueError("Expected calibration batches, got none: pass a batch of inputs or an iterable of batches.")
    return [_call(model, batch) for batch in every]


def _iterable(batches: Any) -> Iterable[Any]:
    if isinstance(batches, str) or not isinstance(batches, Iterable):
        raise TypeError(f"Expected a batch of inputs or an iterable of batches, got a {type(batches).__name__}.")
    return batches


def _is_call(model: nn.Module, batches: Any) -> bool:
    """Whether a tuple holds the arguments of one call, or inputs and labels, rather than several batches."""
    if not isinstance(batches, tuple) or not batches or not all(isinstance(part, Tensor) for part in batches):
        return False
    alike = all((part.dim(), part.dtype) == (batches[0].dim(), batches[0].dtype) for part in batches)
    return not alike or len(batches) <= _positional(model, required=False)


def _call(model: nn.Module, batch: Any) -> CallArguments:
    """Return the arguments of a batch, without labels."""
    if isinstance(batch, (tuple, list)):
        batch = tuple(batch)[: _positional(model, required=isinstance(batch, list))]
    return forward_arguments((), {}, batch)


def _positional(model: nn.Module, *, required: bool) -> int:
    """Return how many positional arguments forward takes, or requires, and at least 1."""
    parameters = signature(model.forward).parameters.values()
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return sys.maxsize
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    taken = [parameter for parameter in parameters if parameter.kind in kinds]
    return max(1, sum(not required or parameter.default is Parameter.empty for parameter in taken))
