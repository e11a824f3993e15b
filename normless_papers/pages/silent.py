"""Where the papers are wrong or silent: the text, a derivation, our measurement and conclusion, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from normless_papers.pages.tables import as_text
from normless_papers.pages.wording import effect_of, plain_claim
from normless_papers.results.reproduction import Reproduction

TITLE = "Where the papers are wrong or silent"
_INTRODUCTION = f"""# {TITLE}

<!-- Written by normless report --silent; do not edit. -->
Places at which a text cannot be as it is printed, contradicts itself or another paper, or says more than it shows.
Numbers of results name the artefact, its budget and its verdict; `normless reproduce ID` repeats them. What a text
leaves open about its trainings is in [the protocols](protocols.md).
"""


@dataclass(frozen=True)
class Passage:
    """A passage of a paper and what came of it; the fields are explained in `silent.yaml`."""

    title: str
    where: str
    text: str
    derivation: str
    checks: Mapping[str, str]
    measured: str
    conclusion: str

    def numbers(self, results: Iterable[Reproduction]) -> list[str]:
        """Return the numbers of its checks in the last result of each artefact, or else those it states."""
        last = {result.id: result for result in results if result.id in self.checks}
        found = []
        for name, words in self.checks.items():
            checks = [check for check in last[name].checks if words in check.claim] if name in last else []
            texts = [as_text(f"{plain_claim(check)} Here: {effect_of(check)}.") for check in checks]
            found += [f"{name} ({last[name].budget}, {last[name].verdicts}): {' '.join(texts)}"] if texts else []
        return found or [self.measured]

    def markdown(self, results: Iterable[Reproduction] = (), *, level: int = 2) -> str:
        """Return it as a section with a heading of a level."""
        return (
            f"{'#' * level} {self.title}\n\n*{self.where}.* {self.text}\n\n**Derivation.** {self.derivation}\n\n"
            f"**Measured.** {' '.join(self.numbers(results))}\n\n**Conclusion.** {self.conclusion}\n"
        )


@cache
def passages(name: str) -> tuple[Passage, ...]:
    """Return the passages of a YAML file beside this one, in its order."""
    text = Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    return tuple(Passage(**entry) for entry in yaml.safe_load(text))


def silences() -> tuple[Passage, ...]:
    """Return the passages that are wrong or silent."""
    return passages("silent")


def silent_page(results: Sequence[Reproduction]) -> str:
    """Return the passages as Markdown, with numbers of the results."""
    return "\n".join([_INTRODUCTION, *(own.markdown(results) for own in silences())])
