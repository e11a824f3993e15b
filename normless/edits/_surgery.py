"""A network under conversion: the network, its places, and the log of what edits did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import nn

from normless._internal.arguments import CallArguments
from normless.edits._calibration import Calibration
from normless.edits._lifted import Lifted
from normless.edits._log import Log
from normless.edits._original import Original
from normless.edits._places import Places
from normless.edits._trained import module_at, parameter_at
from normless.errors import MissingValuesError, UnsupportedEditError
from normless.residual import ResidualMap


class Applicable(Protocol):
    """An edit, as `Surgery.run` applies it."""

    @property
    def needs(self) -> Iterable[str]:
        """What it reads besides the residual map."""

    def apply(self, surgery: Surgery) -> None:
        """Change `surgery.model` in place and record every change."""


class Surgery:
    """A network under conversion.

    Args:
        model: the copy that the edits change.
        found: the residual map of the network before the first edit.
        example: the example inputs, positional and keyword arguments, possibly empty.
        original: the network before the first edit, if the model is a copy of it without values, for a plan.
        only: the qualified names of the parts to convert, the whole network if empty; the map covers only these.
        calibration: what edits of trained networks measure and share.

    Attributes:
        model, example, original, calibration: the arguments.
        places: where edits change the network; `map` is its residual map.
        log: what they did.
        lifted: converts operators in forward code to modules.

    Raises:
        UnsupportedEditError: the network cannot provide what a method returns; the message names the edit, the
            module and the reason.
    """

    def __init__(
        self,
        model: nn.Module,
        found: ResidualMap,
        example: CallArguments = ((), {}),
        original: Original | None = None,
        only: tuple[str, ...] = (),
        calibration: Calibration | None = None,
    ) -> None:
        self.model, self.example, self.original = model, example, original
        self.calibration = Calibration() if calibration is None else calibration
        self.log = Log(type(model).__name__, {path: type(module).__name__ for path, module in model.named_modules()})
        self.places = Places(model, found, self.log, only, model if original is None else original.model)
        self.lifted = Lifted(model, self.map)

    @property
    def map(self) -> ResidualMap:
        """The residual map of the network before the first edit; its paths remain valid."""
        return self.places.map

    def run(self, edit: Applicable) -> None:
        """Apply one edit after checking what it needs; its records and errors carry its name."""
        self.log.edit = edit
        if "values" in edit.needs and self.original is not None:
            raise MissingValuesError(f"{type(edit).__name__} reads the values of weights.")
        if "values" in edit.needs and self.places.is_meta:
            raise self.unsupported("", "it reads weights, and weights on the meta device have no values")
        if "inputs" in edit.needs and not any(map(len, self.example)):
            raise self.unsupported("", "it runs the network: pass a batch, as in convert(model, scheme, batch)")
        for layer in self.places.left(self.places.norms(), "norm") if "no norms" in edit.needs else ():
            raise self.unsupported(layer.path, "this normalization is still there; RemoveNorms removes it before")
        edit.apply(self)

    def record(self, path: str, what: str) -> None:
        """Note a change of the module at `path`, made by the edit that is being applied."""
        self.log.record(path, what)

    def unsupported(self, path: str, reason: str) -> UnsupportedEditError:
        """Return the error that the current edit is not possible at a module, with the reason."""
        return self.log.unsupported(path, reason)

    def get(self, path: str) -> nn.Module:
        """Return the module that is now at `path`."""
        return module_at(self.model, path)

    def parameter(self, name: str) -> nn.Parameter:
        """Return the parameter that now has this qualified name."""
        return parameter_at(self.model, name)

    def replace(self, path: str, module: nn.Module) -> None:
        """Replace the module at `path` under each of its names, in the same mode."""
        self.log.replaced.add(path)
        old = self.get(path)
        module.train(old.training)
        aliases = self.places.aliases.get(path, ())
        modules = dict(self.model.named_modules(remove_duplicate=False)) if aliases else {}
        for alias in (path, *(alias for alias in aliases if modules.get(alias) is old)):
            parent, _, name = alias.rpartition(".")
            setattr(self.get(parent), name, module)
