"""`nl.diagnose` and `nl.treat`: what keeps a network from training, and the conversion that repairs it."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill
from typing import Any

import pandas as pd
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from normless.arguments import arguments_of
from normless.conversion import convert
from normless.diagnosis.batch import BatchNormSizes, check_classes, check_statistics
from normless.diagnosis.blocks import Correlations, check_backward, check_branches, check_growth
from normless.diagnosis.examination import Check, Examination, Finding
from normless.diagnosis.optimizer import check_first_steps, check_optimizer
from normless.probes import Loss, probe, split_batch
from normless.residual import ResidualMap, Unresolved
from normless.residual import residual_map as find_residual_map

PROBES = ("signal", "backward", "logits", "gradients")
CHECKS = (check_growth, check_backward, check_classes, check_statistics, check_branches, check_optimizer)
_WIDTH = 110


@dataclass(frozen=True)
class Diagnosis:
    """Every check of a network with its measurement and findings, and the parts that could not be observed."""

    checks: tuple[Check, ...]
    missed: tuple[Unresolved, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, the most severe first."""
        findings = [finding for check in self.checks for finding in check.findings]
        return tuple(sorted(findings, key=lambda finding: -finding.severity))

    @property
    def healthy(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    @property
    def scheme(self) -> str | None:
        """The first scheme of the most severe finding that a scheme repairs; None if there is none."""
        return next((finding.cure.schemes[0] for finding in self.findings if finding.cure.schemes), None)

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as data ready for JSON."""
        return {
            "healthy": self.healthy,
            "findings": [finding.to_dict() for finding in self.findings],
            "checks": [{"name": check.name, "summary": check.summary, "asked": check.asked} for check in self.checks],
            "missed": [{"path": item.path, "reason": item.reason} for item in self.missed],
        }

    def __str__(self) -> str:
        words = "nothing wrong was found" if self.healthy else f"{len(self.findings)} findings, the most severe first"
        parts = [f"{words}; checked:", *(f"  {check.name}: {check.summary}" for check in self.checks)]
        for number, finding in enumerate(self.findings, 1):
            evidence = (
                f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in finding.evidence.items()
            )
            schemes = f" [{', '.join(finding.cure.schemes)}]" if finding.cure.schemes else ""
            lines = (
                f"{number}. {finding.title}",
                f"   evidence: {', '.join(evidence)}",
                f"   theory: {finding.theory}",
                f"   cure: {finding.cure.words}{schemes}",
            )
            parts += ["", *(fill(line, _WIDTH, subsequent_indent="   ") for line in lines)]
        if self.missed:
            parts += ["", f"not seen: {', '.join(map(str, self.missed[:3]))}{', …' * (len(self.missed) > 3)}"]
        return "\n".join(parts)


def diagnose(
    model: nn.Module,
    batch: Any,
    *,
    loss: Loss = F.cross_entropy,
    optimizer: Optimizer | None = None,
    residual_map: ResidualMap | None = None,
    trial_steps: int = 5,
) -> Diagnosis:
    """Find what keeps a network from training, on one batch in training mode.

    The network and the optimizer are unchanged; trial steps are made on copies.

    Args:
        batch: (inputs, targets) of the size used in training; inputs are one tensor, a tuple or a dictionary of
            arguments.
        optimizer: to train it with; without one, weight decay and first steps are not checked.
        residual_map: the network's map; computed if None.

    Raises:
        ValueError: the batch is no pair, or no gradient can be measured.
        UnresolvedStructureError: the network must be traced and cannot be.
    """
    inputs, targets = split_batch(batch)
    residual_map = residual_map or find_residual_map(model, example_inputs=inputs)
    watchers = (*PROBES, BatchNormSizes()) if residual_map.blocks else (*PROBES, BatchNormSizes(), Correlations())
    measured = probe(model, batch, watchers, loss=loss, residual_map=residual_map)
    examination = Examination(model, residual_map, inputs, targets, loss, optimizer, measured)
    checks = [check(examination) for check in CHECKS]
    return Diagnosis((*checks, check_first_steps(examination, trial_steps)), measured.missed)


@dataclass(frozen=True)
class Treatment:
    """A network converted by the scheme of its diagnosis, and the diagnosis of the result."""

    scheme: str
    network: nn.Module
    before: Diagnosis
    after: Diagnosis

    @property
    def table(self) -> pd.DataFrame:
        """A row per check: its summary before and after, and whether that is fine, wrong, or was not asked."""
        pairs = zip(self.before.checks, self.after.checks, strict=True)
        rows = [(one.name, one.summary, one.verdict, two.summary, two.verdict) for one, two in pairs]
        return pd.DataFrame(rows, columns=["check", "before", "verdict_before", "after", "verdict_after"])

    def to_dict(self) -> dict[str, Any]:
        """The treatment as data ready for JSON."""
        return {"scheme": self.scheme, "before": self.before.to_dict(), "after": self.after.to_dict()}


def treat(
    model: nn.Module,
    batch: Any,
    diagnosis: Diagnosis | None = None,
    *,
    scheme: str | None = None,
    original: nn.Module | None = None,
    loss: Loss = F.cross_entropy,
) -> Treatment | None:
    """Convert a network by the scheme of its diagnosis, and diagnose the result on the same batch.

    Args:
        model, batch, loss: as in `diagnose`.
        diagnosis: of the network; made here if None.
        scheme: replaces the proposed one.
        original: the network before its conversion if `model` carries a scheme; it is converted instead.

    Returns:
        None if no finding is repaired by a scheme.

    Raises:
        AlreadyConvertedError: the network carries a scheme and no original was given.
        UnsupportedEditError: the scheme does not fit the network.
    """
    before = diagnose(model, batch, loss=loss) if diagnosis is None else diagnosis
    chosen = before.scheme if scheme is None else scheme
    if chosen is None:
        return None
    positional, named = arguments_of(split_batch(batch)[0])
    network = convert(model if original is None else original, chosen, *positional, **named)
    return Treatment(chosen, network, before, diagnose(network, batch, loss=loss))
