"""The base class of edits and the table of edits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

from normless.edits._surgery import Surgery
from normless.registry import Registry

Need = Literal["values", "inputs", "no norms"]
Changes = Literal["parts", "layers", "norms removed", "norms replaced"]


class Edit(ABC):
    """A change of a network at places that its residual map defines.

    Edits are frozen dataclasses, so that a scheme is data: it can be compared, printed and varied. An edit of another
    package is written `FILE.py:NAME(…)` or `MODULE:NAME(…)` in the text of a scheme, or is registered in `EDITS`.
    """

    @property
    def text(self) -> str:
        """The edit as it is written in the text of a scheme."""
        members: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        arguments = ", ".join(f"{member.name}={getattr(self, member.name)!r}" for member in members)
        return f"{EDITS.text_of(type(self))}({arguments})"

    needs: ClassVar[frozenset[Need]] = frozenset()
    """What the edit reads besides the residual map: `values` of parameters, or the example `inputs`, on which it runs
    the network; `no norms` if they must be removed before."""

    changes: ClassVar[Changes] = "parts"
    """What the edit changes: it removes norms, replaces norms by others, changes what `layers` compute, or changes or
    adds other `parts`. A trained network folds norms instead of removing them, and is fitted after other changes."""

    of_random_weights: ClassVar[bool] = False
    """Whether the edit is a rule for weights that are drawn at random, which trained networks do without."""

    @property
    def loses(self) -> str:
        """What the edit does to the function of a trained network that no fit makes good, or nothing."""
        return ""

    def for_trained(self) -> Edit:
        """Return the edit with the values for a trained network of what was not stated."""
        return self

    @abstractmethod
    def apply(self, surgery: Surgery) -> None:
        """Change `surgery.model` in place and record every change.

        Raises:
            UnsupportedEditError: the network offers no place for the edit; the message names the module and the
                reason.
        """


def started(what: str, value: Any) -> str:
    """Say what a factor loses that starts at a value, or return ""."""
    return "" if value == 1 else f"starts {what} at {'zero' if value == 0 else value}"


EDITS = Registry[type[Edit]]("edit")
"""Edits by name; `EDITS.register()` decorates a subclass of `Edit`."""

EditClass = TypeVar("EditClass", bound=Edit)


@dataclass_transform(frozen_default=True)
def edit(kind: type[EditClass]) -> type[EditClass]:
    """Make a class a frozen dataclass and register it under its own name."""
    made = dataclass(frozen=True)(kind)
    EDITS.register()(made)
    return made
