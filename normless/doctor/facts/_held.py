"""The optimizers of a training: several as one, the parameters that they hold, and their names in the network."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from normless.errors import InputsError
from normless.optim._named import MUON

# A decay of the weights by more than this share per step is not regularization.
DECAY = 0.02
# Optimizers that subtract lr · weight_decay · w in a step, whatever the size of the gradient.
_SUBTRACTS_DECAY = (SGD, AdamW, *MUON)
# The names of the optimizer in its wrappers.
_INNER = ("optimizer", "optim", "_optimizer")


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


def decay_per_step(optimizer: Optimizer) -> float:
    """Return the largest share of the weights that decay takes in a step; 0 where it depends on the gradients.

    With SGD decay is part of the gradient, and momentum m adds it up to (1 - dampening) / (1 - m) times as much.
    """
    shares = [0.0]
    for part in parts_of(optimizer):
        for group in part.param_groups:
            if isinstance(part, _SUBTRACTS_DECAY) or group.get("decoupled_weight_decay"):
                momentum = float(group.get("momentum", 0.0)) if isinstance(part, SGD) else 0.0
                gain = (1 - float(group.get("dampening", 0.0))) / max(1 - momentum, 1e-12) if momentum else 1.0
                rate, decay = float(group.get("lr", 0.0)), float(group.get("weight_decay", 0.0))
                shares.append(rate * decay * gain)
    return max(shares)


class Together(Optimizer):
    """Takes the steps of several optimizers in turn; its groups are theirs.

    Attributes:
        optimizers: the optimizers.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        super().__init__([dict(group) for each in optimizers for group in each.param_groups], {})
        self.optimizers = list(optimizers)
        self.param_groups = [group for each in optimizers for group in each.param_groups]

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizers": self.optimizers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["optimizers"])  # type: ignore[misc]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step of each optimizer."""
        loss = None if closure is None else closure()
        for each in self.optimizers:
            each.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        for each in self.optimizers:
            each.zero_grad(set_to_none)

    @property
    def usual(self) -> Optimizer:
        """The optimizer that takes parameters of any shape: the one whose parameters have most shapes."""
        return max(self.optimizers, key=lambda each: len({p.dim() for g in each.param_groups for p in g["params"]}))


def one_optimizer(given: Any) -> Optimizer | None:
    """Return an optimizer without wrappers, several as one; None stays None.

    Raises:
        InputsError: it is a class, or something else than optimizers.
    """
    several = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
    inner = [*map(_without_wrappers, several)]
    if inner and all(isinstance(each, Optimizer) for each in inner):
        return inner[0] if len(inner) == 1 else Together(inner)
    if given is None:
        return None
    if isinstance(given, type):
        name = given.__name__
        raise InputsError(f"Expected an optimizer, got the class {name}: make one, {name}(model.parameters(), lr=…).")
    raise InputsError(f"Expected an optimizer, or a list of optimizers, got {type(given).__name__}.")


def _without_wrappers(given: Any) -> Any:
    """Return the optimizer inside wrappers, such as accelerate's, which may be optimizers without torch's tables."""
    while not (isinstance(given, type) or "_optimizer_step_pre_hooks" in getattr(given, "__dict__", {})):
        inner = next((own for name in _INNER if (own := getattr(given, name, None)) is not None), None)
        if inner is None or inner is given:
            break
        given = inner
    return given


def parts_of(optimizer: Optimizer | None) -> list[Optimizer]:
    """Return the optimizers that one consists of, itself if it is not several."""
    return [] if optimizer is None else getattr(optimizer, "optimizers", [optimizer])
