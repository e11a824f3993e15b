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
Places at which a text cannot be as it is printed, contradicts another paper, or leaves out what decides its result.
Numbers of results name the artefact, its budget and its verdict; `normless reproduce ID` repeats them.
"""


@dataclass(frozen=True)
class Silence:
    """A passage that is wrong or silent; the fields are explained in `silent.yaml`."""

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
        found = [
            f"{name} ({last[name].budget}, {last[name].verdict}): "
            + as_text(f"{plain_claim(check)} Here: {effect_of(check)}.")
            for name, words in self.checks.items()
            if name in last
            for check in last[name].checks
            if words in check.claim
        ]
        return found or [self.measured]


@cache
def silences() -> tuple[Silence, ...]:
    """Return the passages in the order of the file."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return tuple(Silence(**entry) for entry in yaml.safe_load(text))


def silent_page(results: Sequence[Reproduction]) -> str:
    """Return the passages as Markdown, with numbers of the results."""
    sections = [
        f"## {own.title}\n\n*{own.where}.* {own.text}\n\n**Derivation.** {own.derivation}\n\n"
        f"**Measured.** {' '.join(own.numbers(results))}\n\n**Conclusion.** {own.conclusion}\n"
        for own in silences()
    ]
    return "\n".join([_INTRODUCTION, *sections])
