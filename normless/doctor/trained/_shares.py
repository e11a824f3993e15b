"""Checks of shares of layers: findings from a limit, advice about few units below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps

from normless.doctor._findings import Check, FindingEvidence, Steps, check, finding
from normless.doctor.trained._subject import TrainedSubject

# Below the limit, so many units or channels are advice.
_FEW = 2


@dataclass(frozen=True)
class Share:
    """The share of a layer's units, channels, values or rows that have a property; some are advice from `_FEW` on.

    `judged` is what is compared with the limit, if it is not the share. `words` are those of the finding's texts.
    """

    layer: str
    count: float
    of: float
    evidence: FindingEvidence = field(default_factory=dict)
    kind: str = "norm"
    few: bool = True
    judged: float | None = None
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share; 0 of nothing."""
        return self.count / max(self.of, 1)

    def is_found(self, limit: float) -> bool:
        """Whether it is a finding."""
        return (self.share if self.judged is None else self.judged) >= limit


def of_shares(
    name: str, kind: str, column: str, limit: float, words: str
) -> Callable[[Callable[[TrainedSubject], Iterator[Share]]], Callable[[TrainedSubject], Check]]:
    """Turn a function that measures shares into a check: of all layers from the limit on, and of few units as advice.

    `words` are the summary, with the number of layers and the largest share.
    """

    def made(measure: Callable[[TrainedSubject], Iterator[Share]]) -> Callable[[TrainedSubject], Check]:
        @check(name)
        @wraps(measure)
        def checked(subject: TrainedSubject) -> Steps:
            shares: dict[str, Share] = {}
            for share in measure(subject):
                shares[share.layer] = max(shares.get(share.layer, share), share, key=lambda seen: seen.share)
            order = sorted(shares.values(), key=lambda share: -share.share)
            for share in shares.values():
                subject.note(share.layer, share.kind, **{column: share.share})
            found = [share for share in order if share.is_found(limit)]
            few = [share for share in order if not share.is_found(limit) and share.few and share.count >= _FEW]
            for layers in filter(None, (found, few)):
                worst = layers[0]
                evidence: FindingEvidence = {"share": worst.share, "limit": limit, "count": worst.count}
                where = [share.layer for share in layers]
                evidence = {**evidence, "of": worst.of, **worst.evidence, "layers": len(layers)}
                made = finding(kind, where, evidence, grade=worst.share, **worst.words)
                yield made if layers is found else replace(made, advice=True)
            return words.format(len(shares), f"{max((share.share for share in order), default=0.0):.1%}")

        return checked

    return made
