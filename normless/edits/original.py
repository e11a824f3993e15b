"""A network before its edits, and what plans of several schemes read from its weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import nn

from normless.residual.graph import Dataflow
from normless.signal import Gain, gains


@dataclass
class Original:
    """A network before its edits, which read its weights and do not change them.

    Attributes:
        model: the network.
        flow: its dataflow.
    """

    model: nn.Module
    flow: Dataflow

    @cached_property
    def gains(self) -> list[Gain]:
        """The factors of weights that keep the scale of activations without norms."""
        return gains(self.model, self.flow)
