"""`nl.treat`: the network after the proposed conversion, with the diagnoses before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch.nn.functional as F
from torch import nn

from normless.arguments import arguments_of
from normless.conversion import convert
from normless.diagnosis.diagnose import Diagnosis, diagnose
from normless.diagnosis.finding import Check
from normless.probes import Loss, split_batch


@dataclass(frozen=True)
class Treatment:
    """A network converted by the scheme of its diagnosis, and the diagnosis of the result."""

    scheme: str
    network: nn.Module
    before: Diagnosis
    after: Diagnosis

    @property
    def table(self) -> pd.DataFrame:
        """A row per check: its summary before and after, and whether that is fine, wrong, or was not asked."""
        rows = [
            {
                "check": before.name,
                "before": before.summary,
                "verdict_before": _verdict(before),
                "after": after.summary,
                "verdict_after": _verdict(after),
            }
            for before, after in zip(self.before.checks, self.after.checks, strict=True)
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """The treatment as data ready for JSON."""
        return {"scheme": self.scheme, "before": self.before.to_dict(), "after": self.after.to_dict()}


def treat(
    model: nn.Module,
    batch: Any,
    diagnosis: Diagnosis | None = None,
    *,
    scheme: str | None = None,
    original: nn.Module | None = None,
    loss: Loss = F.cross_entropy,
) -> Treatment | None:
    """Convert a network by the scheme of its diagnosis, and diagnose the result on the same batch.

    Args:
        model: the network; unchanged.
        batch: as in `diagnose`.
        diagnosis: of the network; made here if None.
        scheme: replaces the proposed one.
        original: the network before its conversion if `model` carries a scheme; it is converted instead.
        loss: as in `diagnose`.

    Returns:
        The treatment, or None if no finding is repaired by a scheme.

    Raises:
        AlreadyConvertedError: the network carries a scheme and no original was given.
        UnsupportedEdit: the scheme does not fit the network.
    """
    before = diagnose(model, batch, loss=loss) if diagnosis is None else diagnosis
    chosen = before.scheme if scheme is None else scheme
    if chosen is None:
        return None
    positional, named = arguments_of(split_batch(batch)[0])
    network = convert(model if original is None else original, chosen, *positional, **named)
    return Treatment(chosen, network, before, diagnose(network, batch, loss=loss))


def _verdict(check: Check) -> str:
    return "wrong" if check.findings else "fine" if check.asked else "not asked"
