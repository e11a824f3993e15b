"""A network as a pure function of its parameters and inputs, and the part of it that each parameter belongs to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normless.probes import compute_logits
from normless.residual import Layer, ResidualMap, residual_map as find_residual_map
from normless.state import preserve_state

NetworkFunction = Callable[[Mapping[str, Tensor], Any], Tensor]
"""From parameters by qualified name and inputs to logits; omitted parameters are the network's own."""

_SEED = 0


@contextmanager
def as_function(model: nn.Module, *, training: bool) -> Iterator[NetworkFunction]:
    """Yield a network, in training mode or not, as a pure function (parameters, inputs) → logits.

    Given parameters replace the network's own of the same qualified name. Every call starts from the same random
    state and buffers, so calls differ only by their arguments. The network's state is restored as by
    `preserve_state`.
    """

    def function(parameters: Mapping[str, Tensor], inputs: Any) -> Tensor:
        torch.manual_seed(_SEED)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        state = {**buffers, **parameters}
        return compute_logits(lambda *args, **named: functional_call(model, state, args, named), inputs)

    with preserve_state(model, training=training):
        yield function


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters by qualified name, as detached leaves that require gradients.

    Raises:
        ValueError: there are none.
    """
    named = model.named_parameters()
    parameters = {name: value.detach().requires_grad_() for name, value in named if value.requires_grad}
    if not parameters:
        raise ValueError(f"This {type(model).__name__} has no trainable parameter whose update could be measured.")
    return parameters


def gradients_by(
    value: Tensor, parameters: Mapping[str, Tensor], weights: Tensor | None = None, *, again: bool = False
) -> dict[str, Tensor]:
    """Return the gradient of a scalar, or of a weighted sum of elements, by each parameter; zero without influence.

    With `again` the graph is retained.
    """
    leaves = list(parameters.values())
    slopes = torch.autograd.grad(value, leaves, weights, retain_graph=again, materialize_grads=True)
    return dict(zip(parameters, slopes, strict=True))


def gradients_of(values: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of several scalars of one graph by each parameter, shape (values, elements)."""
    rows = [gradients_by(value, parameters, again=value is not values[-1]) for value in values]
    return {name: torch.stack([row[name].flatten() for row in rows]) for name in parameters}


def map_of(model: nn.Module, inputs: Any, residual_map: ResidualMap | None) -> ResidualMap:
    """Return the map of a network, by tracing unless it is given."""
    return residual_map or find_residual_map(model, example_inputs=inputs)


NetworkPart = Literal["stem", "shared", "branch", "skip", "after_sum", "trunk", "head", "other"]


@dataclass(frozen=True)
class ParameterOwner:
    """The layer that reads a parameter, and the part of the network it belongs to.

    Attributes:
        layer: path of the layer; empty if no layer of the map reads the parameter.
        place: the part of the network.
        block: number of the block from 1, 0 outside blocks; `name` is its name.
        position: number of the weight layer on its path, from 1; 0 for layers of other kinds.
    """

    layer: str
    place: NetworkPart
    block: int
    name: str
    position: int


NO_OWNER = ParameterOwner("", "other", 0, "", 0)


def parameter_owners(residual_map: ResidualMap) -> dict[str, ParameterOwner]:
    """Return the first layer that reads each parameter, by the parameter's qualified name."""
    owners: dict[str, ParameterOwner] = {}

    def add(layers: tuple[Layer, ...], place: NetworkPart, block: int = 0, name: str = "") -> None:
        position = 0
        for layer in layers:
            position += layer.kind == "weight"
            owner = ParameterOwner(layer.path, place, block, name, position if layer.kind == "weight" else 0)
            for parameter in filter(None, (*layer.parameters, layer.gamma)):
                owners.setdefault(parameter, owner)

    add(residual_map.stem_layers, "stem")
    for index, block in enumerate(residual_map.blocks, 1):
        add(block.shared_layers, "shared", index, block.name)
        add(block.branch_layers, "branch", index, block.name)
        add(block.skip_layers, "skip", index, block.name)
        add(block.after_sum, "after_sum", index, block.name)
        if block.sum is not None:
            # A multiplier that is not folded into the branch belongs to the sum.
            owners.setdefault(f"{block.sum}.multiplier", ParameterOwner(block.sum, "branch", index, block.name, 0))
    add(residual_map.trunk_layers, "trunk")
    add(residual_map.head_layers, "head")
    return owners


def last_stem_layer(residual_map: ResidualMap) -> Layer | None:
    """Return the last called module before the first block; None without one."""
    called = [layer for layer in residual_map.stem_layers if layer.called and ":" not in layer.path]
    return called[-1] if called else None


def require_known(names: Collection[str] | None, known: Collection[str], what: str) -> None:
    """Check that a network has parameters or layers of these names.

    Raises:
        ValueError: a name is unknown; the message suggests known names.
    """
    unknown = [name for name in names or () if name not in known]
    if unknown:
        examples = ", ".join(list(known)[:8]) or "none"
        more = ", …" if len(known) > 8 else ""
        raise ValueError(
            f"There is no {what} {', '.join(map(repr, unknown))} in this network; it has {examples}{more}."
        )
