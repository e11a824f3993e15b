"""The parameters that optimizers hold, and the names that they have in a network."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require gradients, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def held(optimizer: Optimizer | None) -> list[Tensor]:
    """Return the parameters of all groups of an optimizer; none if there is no optimizer."""
    groups = [] if optimizer is None else optimizer.param_groups
    return [parameter for group in groups for parameter in group["params"]]


def held_by(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the network's parameters that an optimizer holds, by name."""
    return {names[id(parameter)]: parameter for parameter in held(optimizer) if id(parameter) in names}


def held_elsewhere(optimizer: Optimizer | None) -> set[int]:
    """Return the identities of the parameters that the other optimizers of this process hold.

    A generator and its critic, or a policy and its value, are trained by optimizers that alternate.
    """
    # The type is asked, because `isinstance` runs the code of proxies.
    others = [known for known in gc.get_objects() if issubclass(type(known), Optimizer) and known is not optimizer]
    return {id(parameter) for other in others for parameter in held(other)}


@dataclass(frozen=True)
class NamedGroup:
    """A group of an optimizer.

    Attributes:
        number: its index.
        settings: the group itself.
        names: the names of the trainable parameters of the network in it.
    """

    number: int
    settings: dict[str, Any]
    names: tuple[str, ...]


def named_groups(optimizer: Optimizer, model: nn.Module) -> list[NamedGroup]:
    """Return the groups of an optimizer with the names of the network's trainable parameters in them."""
    names = {id(parameter): name for name, parameter in trained_parameters(model).items()}
    return [
        NamedGroup(number, group, tuple(names[id(known)] for known in group["params"] if id(known) in names))
        for number, group in enumerate(optimizer.param_groups)
    ]
