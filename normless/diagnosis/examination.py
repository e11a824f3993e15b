"""What the checks of a diagnosis read, and what they give: findings and their cures."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn
from torch.optim import Optimizer

from normless.arguments import arguments_of
from normless.conversion import plan, scheme_of
from normless.errors import NormlessError
from normless.probes import Loss, Measurements
from normless.residual import ResidualMap
from normless.spec import jsonable

_TEXTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("findings.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Cure:
    """A repair of a finding.

    Attributes:
        words: what to do, with the call that does it.
        schemes: texts of the schemes that repair it and fit the network, the best one first; empty if no edit does.
    """

    words: str
    schemes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A cause that keeps a network from training, now or later.

    Attributes:
        kind: an identifier, as `growing_variance`.
        severity: from 0 to 1; findings are ranked by it.
        title: one sentence with the most important number.
        evidence: measured and predicted numbers by name.
        where: qualified names of the blocks, layers or parameters concerned.
        theory: why it is a problem, with the paper.
        cure: the repair.
    """

    kind: str
    severity: float
    title: str
    evidence: Mapping[str, float | int | str]
    where: tuple[str, ...]
    theory: str
    cure: Cure

    def to_dict(self) -> dict[str, Any]:
        """The finding as data ready for JSON."""
        data: dict[str, Any] = jsonable(asdict(self))
        return data


@dataclass(frozen=True)
class Check:
    """One check of a network.

    Attributes:
        summary: the measurement in words and numbers, whether or not it is a finding.
        findings: empty if nothing is wrong.
        asked: False if the check does not apply or could not be made.
    """

    name: str
    summary: str
    findings: tuple[Finding, ...] = ()
    asked: bool = True

    @property
    def verdict(self) -> str:
        """`wrong`, `fine` or `not asked`."""
        return "wrong" if self.findings else "fine" if self.asked else "not asked"


@dataclass(frozen=True)
class Examination:
    """The arguments of a diagnosis, and the measurements of one pass in training mode."""

    model: nn.Module
    map: ResidualMap
    inputs: Any
    targets: Any
    loss: Loss
    optimizer: Optimizer | None
    measured: Measurements

    def observed(self, probe: str) -> pd.DataFrame:
        """The rows of a probe for the blocks with a measured sum; NaN in them is a measured value."""
        table = self.measured[probe]
        return table[~table["name"].isin([item.path for item in self.measured.missed])]

    def finding(
        self,
        kind: str,
        severity: float,
        where: Sequence[str],
        evidence: Mapping[str, float | int | str],
        **words: Any,
    ) -> Finding:
        """A finding with the texts of its kind in `findings.toml`, which name evidence and further `words`."""
        texts = _TEXTS[kind]
        texts = _TEXTS.get(texts.get("like", ""), {}) | texts
        # Norms after sums, or first on branches.
        placed = {"schemes_post": [block.after_sum for block in self.map.blocks]}
        placed["schemes_pre"] = [block.branch_layers[:1] for block in self.map.blocks]
        kinds = {name: {layer.kind for layers in placed[name] for layer in layers} for name in placed}
        key = next((name for name in placed if name in texts and "norm" in kinds[name]), "schemes")
        wanted = texts.get(key, [])
        schemes = self._fitting(wanted)
        words |= {**evidence, "where": where, "best": (*schemes, *wanted, "")[0]}
        words["others"] = ", or another of these schemes" if len(schemes) > 1 else ""
        cure = Cure(texts["cure"].format_map(words), schemes)
        kind, title = (text.format_map(words) for text in (texts.get("kind", kind), texts["title"]))
        return Finding(kind, severity, title, evidence, tuple(where), texts["theory"], cure)

    def _fitting(self, schemes: Sequence[str]) -> tuple[str, ...]:
        """The schemes that fit the network; all if it carries a scheme already."""
        if scheme_of(self.model) is not None:
            return tuple(schemes)
        positional, named = arguments_of(self.inputs)
        fitting = []
        for scheme in schemes:
            with suppress(NormlessError):
                plan(self.model, scheme, *positional, residual_map=self.map, **named)
                fitting.append(scheme)
        return tuple(fitting)
