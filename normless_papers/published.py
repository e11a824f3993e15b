"""The papers' published claims and numbers, read from the YAML file beside each module of artefacts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

from normless.errors import NormlessError
from normless.registry import did_you_mean

ArtefactKind = Literal["algorithm", "analytic", "guideline", "probe", "training"]

PAPERS: Mapping[str, str] = {
    "skipinit": "De & Smith 2020, Batch Normalization Biases Residual Blocks Towards the Identity Function",
    "zeroinit": "De & Smith 2019, Batch Normalization Has Multiple Benefits (ZeroInit)",
    "understanding-bn": "Bjorck et al. 2018, Understanding Batch Normalization",
    "fixup": "Zhang et al. 2019, Fixup Initialization",
    "gamma": "Kim et al., Guidelines for the Regularization of Gammas",
}


class UnknownArtefactError(NormlessError, KeyError):
    """No artefact has this id; the message suggests the nearest one."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Published:
    """An artefact as its paper presents it, and the budgets at which it is reproduced.

    Attributes:
        id: `PAPER/NAME`, such as `fixup/table-1`.
        where: section, table or figure of the paper.
        setup: how the paper obtained it, as far as the text says.
        rows: printed numbers, one mapping per row of a table; for single quantities, `quantity` and `value`.
        claim: the paper's conclusion.
        note: damaged, contradictory or open passages of the text; empty if there are none.
        budgets: settings of the artefact's function at each budget, as plain data, and `remarks` on every result.
        claims: the claim's checks as data, see `normless_papers.claims.declared`; empty if a function makes them.
        compares: a table or figure of De & Smith, see `normless_papers.experiments.de_smith`; empty for others.
        protocol: the text's sentences on its training by aspect, see `normless_papers.experiments.protocol.ASPECTS`,
            each with its section; an aspect of which the text is silent is left out.
    """

    id: str
    kind: ArtefactKind
    title: str
    where: str
    setup: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    claim: str
    note: str
    budgets: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    protocol: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    claims: tuple[Mapping[str, Any], ...] = field(default=(), compare=False, repr=False)
    compares: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def paper(self) -> str:
        """The key of the paper, the part of the id before the slash."""
        return self.id.partition("/")[0]

    @property
    def quantities(self) -> dict[str, Any]:
        """The published single quantities by name."""
        return {row["quantity"]: row["value"] for row in self.rows}

    @classmethod
    def from_entry(cls, values: Mapping[str, Any]) -> Published:
        """Construct from an entry of a YAML file and its `id`; only `id` and `claim` are required."""
        printed = values.get("published") or ()
        if isinstance(printed, dict):
            printed = [{"quantity": name, "value": value} for name, value in printed.items()]
        known = {"kind": "probe", "title": values["id"], "where": "", "setup": {}, "note": ""}
        known |= {"budgets": {}, "protocol": {}, "claims": (), "compares": {}}
        known |= {name: values[name] for name in (*known, "id", "claim") if name in values}
        return cls(**known, rows=tuple(MappingProxyType(dict(row)) for row in printed))

    def to_entry(self) -> dict[str, Any]:
        """Return the entry for `from_entry`, without the budgets, the protocol and the declared claims."""
        left_out = ("budgets", "protocol", "claims", "compares")
        values = {name: value for name, value in vars(self).items() if name not in left_out}
        return values | {"published": list(values.pop("rows"))}


def entries_of(text: str) -> dict[str, Published]:
    """Parse the artefacts of a YAML text by id; keys without a slash are there to be referred to by anchor."""
    entries = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {name: Published.from_entry({"id": name, **entry}) for name, entry in entries.items() if "/" in name}


@cache
def published() -> Mapping[str, Published]:
    """Return every artefact of the five papers by its id, in the order of the papers and then of the ids' numbers."""
    package, entries = Path(__file__).parent, dict[str, Published]()
    for paper in PAPERS:
        files = (package / "efforts.yaml", *sorted((package / paper.replace("-", "_")).glob("*.yaml")))
        own = entries_of("\n".join(path.read_text(encoding="utf-8") for path in files))
        entries |= {name: own[name] for name in sorted(own, key=_natural)}
    return MappingProxyType(entries)


def published_as(artefact: str) -> Published:
    """Return the artefact of an id; UnknownArtefactError if there is none."""
    if artefact not in published():
        meant = did_you_mean(artefact, published()) or " See normless reproduce --list."
        raise UnknownArtefactError(f"No artefact has the id {artefact!r}.{meant}")
    return published()[artefact]


def _natural(name: str) -> list[str | int]:
    """Return a sort key by which figure-2 precedes figure-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
