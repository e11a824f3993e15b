"""The proposed edit made, and the network measured again: before and after side by side."""

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
from normless.probes.hooks.observe import Loss
from normless.probes.measure import split_batch


@dataclass(frozen=True)
class Treatment:
    """A network converted by the scheme that its diagnosis proposed, and the diagnosis of the result."""

    scheme: str
    network: nn.Module
    before: Diagnosis
    after: Diagnosis

    @property
    def table(self) -> pd.DataFrame:
        """A row per check: what it said before and after, and whether that is fine, wrong, or was not asked."""
        rows = [
            {
                "check": one.name,
                "before": one.summary,
                "verdict_before": _verdict(one),
                "after": other.summary,
                "verdict_after": _verdict(other),
            }
            for one, other in zip(self.before.checks, self.after.checks, strict=True)
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
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
    """Convert a network by the scheme that its diagnosis proposes, and diagnose the result on the same batch.

    Args:
        model: the network; left as it was.
        batch: as in `diagnose`.
        diagnosis: of it; made here if None.
        scheme: in place of the proposed one.
        original: the network as it was before its conversion, where `model` carries a scheme: that is converted.
        loss: as in `diagnose`.

    Returns:
        The treatment, or None where nothing is wrong that a scheme mends.

    Raises:
        AlreadyConvertedError: the network carries a scheme and no original was given.
        UnsupportedEditError: it offers no place for the scheme.
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
