"""The protocols of the papers' trainings beside the texts' sentences, a table for each paper, as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from normless_papers.artefact import artefact_of
from normless_papers.experiments.protocol import ASPECTS, protocol_of
from normless_papers.pages.silent import passages
from normless_papers.pages.tables import heading_of, row_of
from normless_papers.published import PAPERS, published

SILENT = "silent"
_INTRODUCTION = """# Protocols beside the texts

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
    return "\n".join([_INTRODUCTION, *map(section_of, PAPERS), effects()])


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
