"""`nl.treat`: repair a network by the conversion that its diagnosis proposes, and diagnose the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from normless._internal.arguments import arguments_of
from normless.conversion import convert
from normless.doctor._diagnose import diagnose
from normless.doctor._report import Diagnosis
from normless.doctor.experiments._cures import optimizer_like
from normless.doctor.experiments._engine import set_groups
from normless.doctor.facts._held import one_optimizer
from normless.exclusive import exclusive
from normless.probes import Loss
from normless.probes._measure import split_batch


@dataclass(frozen=True)
class Treatment:
    """A network converted by the scheme of its diagnosis, and the diagnosis of the result."""

    scheme: str
    network: nn.Module
    before: Diagnosis
    after: Diagnosis

    @property
    def table(self) -> pd.DataFrame:
        """A row for each check of both diagnoses: its summaries and verdicts before and after."""
        after = {check.name: check for check in self.after.checks}
        pairs = [(check, after[check.name]) for check in self.before.checks if check.name in after]
        rows = [(first.name, first.summary, first.verdict, second.summary, second.verdict) for first, second in pairs]
        return pd.DataFrame(rows, columns=["check", "before", "verdict_before", "after", "verdict_after"])

    def to_dict(self) -> dict[str, Any]:
        """Return the treatment as data for JSON."""
        return {"scheme": self.scheme, "before": self.before.to_dict(), "after": self.after.to_dict()}


@exclusive
def treat(
    model: nn.Module,
    batch: Any,
    diagnosis: Diagnosis | None = None,
    *,
    scheme: str | None = None,
    original: nn.Module | None = None,
    loss: Loss = F.cross_entropy,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
) -> Treatment | None:
    """Convert a network by the scheme of its diagnosis, and diagnose the result on the same batch.

    Args:
        model, batch, loss: as in `diagnose`.
        optimizer: the optimizer of the first diagnosis; the result is diagnosed with an optimizer of the same class
            and settings, at the rate of the proposed cure.
        diagnosis: the diagnosis of the network; made here if None.
        scheme: the scheme to convert by, in place of the proposed one.
        original: the network before its conversion, if `model` carries a scheme; it is converted instead.

    Returns:
        The treatment, or None if no finding is repaired by a scheme.

    Raises:
        AlreadyConvertedError: the network carries a scheme and no original was given.
        UnsupportedEditError: the scheme does not fit the network.
    """
    before = diagnose(model, batch, loss=loss, optimizer=optimizer) if diagnosis is None else diagnosis
    chosen = before.scheme if scheme is None else scheme
    if chosen is None:
        return None
    positional, named = arguments_of(split_batch(batch)[0])
    network = convert(model if original is None else original, chosen, *positional, **named)
    given = one_optimizer(optimizer)
    again = None if given is None else optimizer_like(given, network)
    if again is not None and scheme is None:
        set_groups(again, before.cure.settings)
    return Treatment(chosen, network, before, diagnose(network, batch, loss=loss, optimizer=again))
