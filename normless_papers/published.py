"""What the papers publish, from `published.yaml`: an entry per table, figure, theorem, algorithm and guideline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

import yaml

from normless.errors import NormlessError
from normless.registry import did_you_mean

Kind = Literal["algorithm", "analytic", "guideline", "probe", "training"]

PAPERS: Mapping[str, str] = {
    "skipinit": "De & Smith 2020, Batch Normalization Biases Residual Blocks Towards the Identity Function",
    "zeroinit": "De & Smith 2019, Batch Normalization Has Multiple Benefits (ZeroInit)",
    "understanding-bn": "Bjorck et al. 2018, Understanding Batch Normalization",
    "fixup": "Zhang et al. 2019, Fixup Initialization",
    "gamma": "Kim et al., Guidelines for the Regularization of Gammas",
}


class UnknownArtefactError(NormlessError, KeyError):
    """No artefact has this id; the message names the nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Published:
    """One artefact as its paper has it.

    Attributes:
        id: `PAPER/NAME`, such as `fixup/table-1`.
        where: section, table or figure of the paper.
        setup: how the paper did it, as far as it says.
        rows: printed numbers, one mapping per row of a table; of single quantities, `quantity` and `value`.
        claim: what the paper concludes from it.
        note: where the text is damaged, contradicts itself or leaves something open; else empty.
    """

    id: str
    kind: Kind
    title: str
    where: str
    setup: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    claim: str
    note: str

    @property
    def paper(self) -> str:
        """The key of the paper, the part of the id before the slash."""
        return self.id.partition("/")[0]

    @property
    def quantities(self) -> dict[str, Any]:
        """The single quantities that are published, by name."""
        return {row["quantity"]: row["value"] for row in self.rows}

    @classmethod
    def from_entry(cls, values: Mapping[str, Any]) -> Published:
        """Of an entry as `published.yaml` has them; only `id` and `claim` are needed."""
        printed = values.get("published") or ()
        if isinstance(printed, dict):
            printed = [{"quantity": name, "value": value} for name, value in printed.items()]
        known = {"kind": "probe", "title": values["id"], "where": "", "setup": {}, "note": ""}
        known |= {name: values[name] for name in (*known, "id", "claim") if name in values}
        return cls(**known, rows=tuple(MappingProxyType(dict(row)) for row in printed))

    def to_entry(self) -> dict[str, Any]:
        """The inverse of `from_entry`."""
        values = dict(vars(self))
        return values | {"published": list(values.pop("rows"))}


@cache
def published() -> Mapping[str, Published]:
    """Every artefact by its id, in the order of the papers."""
    text = files("normless_papers").joinpath("published.yaml").read_text(encoding="utf-8")
    entries = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return MappingProxyType({entry["id"]: Published.from_entry(entry) for entry in entries})


def published_as(artefact: str) -> Published:
    """The artefact of an id; UnknownArtefactError where there is none."""
    if artefact not in published():
        meant = did_you_mean(artefact, published()) or " See normless reproduce --list."
        raise UnknownArtefactError(f"No artefact has the id {artefact!r}.{meant}")
    return published()[artefact]
