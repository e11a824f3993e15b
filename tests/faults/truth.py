"""Decide from the text of a finding whether it names the cause of a fault, a symptom of it, or something else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["cause", "symptom", "wrong"]

_EXCLUDED = re.compile(
    r"(?:is|was|are|were)?\s*(?:not due to|not because of|not caused by|ruled? out|rules out|no sign of)\b[^.;:\n]*",
    re.IGNORECASE,
)


def both(*patterns: str) -> str:
    """Return a regular expression that is satisfied where all patterns occur, in any order."""
    return "(?s)" + "".join(f"(?=.*(?:{pattern}))" for pattern in patterns)


ZERO = r"\bzero\b|\bzeros\b|(?<![\d.])0(?![\d.])|\b0\.0\b"
NOT_FITTED = (
    r"(can|could)\s?not (be )?fit|not fitted|cannot fit|fail\w* to fit|(does|do|did) not (learn|train|"
    r"fall|decrease|improve)|"
    r"no progress|stuck|stay\w*|plateau|barely|hardly|guess\w*|constant|flat|rises|diverg\w+|does not memori[sz]e"
)
NOT_FINITE = r"\bnans?\b|\binfs?\b|infinit|not finite|non-?finite|overflow|diverg\w+|explod\w+"
NO_GRADIENT = (
    r"no gradients?|zero gradient|gradients? (is|are|of)?\s*(none|zero|vanish\w*|exactly)|vanish\w*|"
    r"receives? no|never change"
)
SAME_OUTPUT = (
    r"(same|identical|equal|constant|alike)\W+(for|in|over|across)\W+(all|every|different)|"
    r"outputs? (is|are)( the)? (same|constant|identical|alike)|(does|do) not depend on|independent of"
)
NOTHING = r"(?!)"
LEAK = r"too (easy|good|fast)|suspicious\w*|leak\w*|trivial\w*|eval\w* (loss|accuracy)|generali[sz]"


@dataclass(frozen=True)
class Truth:
    """Hold what an answer must say.

    Attributes:
        cause: regular expression of a text that names the cause.
        modules: names of modules, one of which must appear in a text that names the cause; none is needed if empty.
        symptom: regular expression of a text that is right, but names a symptom only.
    """

    cause: str
    modules: tuple[str, ...] = ()
    symptom: str = NOT_FITTED

    @classmethod
    def of_kinds(cls, kinds: Sequence[str], says: str = "") -> Truth:
        """Return the truth of an answer of normless, which must have one of these kinds, and say this."""
        cause = rf"kind='(?:{'|'.join(kinds)})'"
        return cls(cause + f"(?s:.*(?:{says}))" if says else cause, symptom=NOTHING)

    @property
    def is_kinds(self) -> bool:
        """Return whether the cause is a kind of finding."""
        return self.cause.startswith("kind=")

    def verdict(self, text: str) -> Verdict:
        """Return whether a text names the cause, a symptom, or something else; what it rules out does not count."""
        stated = _EXCLUDED.sub(" ", text)
        located = not self.modules or any(
            re.search(rf"(?<![\w.]){re.escape(module)}(?!\w)", stated) for module in self.modules
        )
        if located and re.search(self.cause, stated, re.IGNORECASE):
            return "cause"
        return "symptom" if re.search(self.symptom, stated, re.IGNORECASE) else "wrong"
