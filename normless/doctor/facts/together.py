"""Several optimizers of one network as one, such as Muon for its matrices and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer

from normless.errors import InputsError


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
    """Return an optimizer, several as one; None stays None.

    Raises:
        InputsError: it is a class, or something else than optimizers.
    """
    if given is None or isinstance(given, Optimizer):
        return given
    if isinstance(given, (list, tuple)) and given and all(isinstance(each, Optimizer) for each in given):
        return given[0] if len(given) == 1 else Together(given)
    if isinstance(given, type):
        name = given.__name__
        raise InputsError(f"Expected an optimizer, got the class {name}: make one, {name}(model.parameters(), lr=…).")
    raise InputsError(f"Expected an optimizer, or a list of optimizers, got {type(given).__name__}.")


def parts_of(optimizer: Optimizer | None) -> list[Optimizer]:
    """Return the optimizers that one consists of, itself if it is not several."""
    return [] if optimizer is None else getattr(optimizer, "optimizers", [optimizer])
