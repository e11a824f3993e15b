"""A network before its edits: its map, and what plans of several schemes read from its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from normless.errors import UnsupportedEditError
from normless.residual import ResidualMap, residual_map
from normless.residual._batch_statistics import require_finite
from normless.residual._classify import kind_of
from normless.signal._factors import Gain, gains


@dataclass
class Original:
    """A network before its edits, which no plan changes.

    Attributes:
        model: the network.
        inputs: positional example inputs, possibly empty.
        kwargs: keyword example inputs, likewise.
        known: its residual map if known.
    """

    model: nn.Module
    inputs: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    known: ResidualMap | None = None
    _is_checked: bool = field(default=False, init=False)

    @cached_property
    def map(self) -> ResidualMap:
        """The residual map."""
        return self.known or residual_map(self.model, *self.inputs, **self.kwargs)

    @cached_property
    def gains(self) -> list[Gain]:
        """The factors of weights that keep the scale of activations without norms."""
        return gains(self.model, self.map.flow)

    @cached_property
    def has_values(self) -> bool:
        """Whether no parameter is on the meta device."""
        return not any(parameter.is_meta for parameter in self.model.parameters())

    def check(self) -> None:
        """Check once that the values of norms are finite, and that no layer has whole numbers.

        Raises:
            UnsupportedEditError: they are not, or a layer has.
        """
        if not self._is_checked:
            require_finite(self.model)
            _refuse_integers(self.model)
            self._is_checked = True


def _refuse_integers(network: nn.Module) -> None:
    """Raise an UnsupportedEditError for a layer or norm of whole numbers, as of a quantized network."""
    for path, module in network.named_modules():
        if kind_of(module) in ("weight", "norm"):
            for name, parameter in module.named_parameters(recurse=False):
                if not (parameter.is_floating_point() or parameter.is_complex()):
                    raise UnsupportedEditError(
                        f"{name} of {path or 'the network'}, a {type(module).__name__}, has whole numbers "
                        f"({parameter.dtype}), which no edit scales; convert the network before it is quantized."
                    )
