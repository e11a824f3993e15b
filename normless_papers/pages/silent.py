"""Where the papers are wrong or silent, and protocols beside their sentences, as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from normless_papers.artefact import artefact_of
from normless_papers.experiments.protocol import ASPECTS, protocol_of
from normless_papers.pages.tables import as_text, effect_of, heading_of, plain_claim, row_of
from normless_papers.published import PAPERS, published
from normless_papers.results.reproduction import Reproduction

TITLE = "Where the papers are wrong or silent"
_WRONG_OR_SILENT = f"""# {TITLE}

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
    return "\n".join([_WRONG_OR_SILENT, *(own.markdown(results) for own in silences())])


SILENT = "silent"
_PROTOCOLS = """# Protocols beside the texts

<!-- Written by normless report; do not edit. -->
What the artefacts that train networks ask for at the paper's budget, beside what the text says of it. The third
column is read from the configurations of the runs; where methods, depths or batch sizes differ, their names come
first. The last column quotes the text, with its section in brackets; *silent* where it says nothing, so that the
third column is our choice, of which the brackets give the reason. Artefacts with the same entries share a row.
Smaller budgets change data, network, epochs, batch sizes, rates and replicates, and no other row. Two choices that
decide whether a network trains are [explained below](#protocols-and-their-effects).
"""
_EFFECTS = "## Protocols and their effects\n"
_COLUMNS = ("", "artefacts", "here", "the text")


def trained(paper: str) -> list[str]:
    """Return the ids of a paper's artefacts that train networks and do not only share the runs of others."""
    own = [entry for entry in published().values() if entry.paper == paper]
    return [
        entry.id
        for entry in own
        if entry.protocol or (entry.kind == "training" and artefact_of(entry.id).basis == "training")
    ]


def protocols_page() -> str:
    """Return the page of all papers."""
    return "\n".join([_PROTOCOLS, *map(section_of, PAPERS), effects()])


def effects() -> str:
    """Return the section on the choices that decide whether a network trains."""
    return "\n".join([_EFFECTS, *(own.markdown(level=3) for own in passages("protocols"))])


def section_of(paper: str) -> str:
    """Return the table of a paper."""
    return "\n".join([f"## {PAPERS[paper]}\n", *heading_of(_COLUMNS), *_rows(trained(paper)), ""])


def _rows(names: Sequence[str]) -> list[str]:
    """Return a row for each aspect, value and sentence, with the artefacts that have them."""
    protocols = {name: protocol_of(name) for name in names}
    rows = []
    for aspect in ASPECTS:
        together = defaultdict(list)
        for name, protocol in protocols.items():
            sentence = published()[name].protocol.get(aspect, SILENT)
            together[protocol[aspect], sentence].append(name.partition("/")[2])
        for (value, sentence), ids in together.items():
            everywhere = len(ids) == len(names) and len(names) > 1
            rows.append(row_of([aspect, "all" if everywhere else ", ".join(ids), value, sentence]))
    return rows
