"""Findings about shares of layers: findings from a limit, advice below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from normless.doctor.findings import Evidence, Finding, finding

# Below the limit, so many units or channels are advice.
_FEW = 2
# Advice, and consequences of other findings, are so much less severe.
LESS = 0.4


@dataclass(frozen=True)
class Share:
    """The share and the number of the units of a layer that have a property, with further evidence."""

    share: float
    count: int
    evidence: Evidence = field(default_factory=dict)


def graded(kind: str, shares: Mapping[str, Share], limit: float, **words: Any) -> Iterator[Finding]:
    """Yield a finding about all layers with a share from the limit, the largest first, and advice about few units."""
    order = sorted(shares, key=lambda layer: -shares[layer].share)
    found = [layer for layer in order if shares[layer].share >= limit]
    few = [layer for layer in order if shares[layer].count >= _FEW and layer not in found]
    for layers in filter(None, (found, few)):
        worst = shares[layers[0]]
        evidence = {"share": worst.share, "limit": limit, "count": worst.count, **worst.evidence}
        made = finding(kind, layers, evidence | {"layers": len(layers)}, grade=worst.share, **words)
        yield made if layers is found else replace(made, advice=True, severity=made.severity - LESS)


def most(shares: Mapping[str, Share]) -> str:
    """Return the largest share in words."""
    return f"{max((share.share for share in shares.values()), default=0.0):.1%}"
