"""`nl.diagnose`: what is wrong with a network, on what evidence, by which theory, and the edit that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from normless.diagnosis.backward import check_backward
from normless.diagnosis.branches import check_branches
from normless.diagnosis.classes import check_classes
from normless.diagnosis.decay import check_optimizer
from normless.diagnosis.examination import examine
from normless.diagnosis.finding import Check, Finding
from normless.diagnosis.growth import check_growth
from normless.diagnosis.statistics import check_statistics
from normless.diagnosis.trial import check_first_steps
from normless.probes.hooks.observe import Loss
from normless.probes.measure import split_batch
from normless.residual import ResidualMap, Unresolved

CHECKS = (check_growth, check_backward, check_classes, check_statistics, check_branches, check_optimizer)
_WIDTH = 110


@dataclass(frozen=True)
class Diagnosis:
    """All that was asked of a network, and what was found wrong.

    Attributes:
        checks: every question with what was measured, whether or not it is a finding.
        missed: what of the network could not be seen.
    """

    checks: tuple[Check, ...]
    missed: tuple[Unresolved, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, the worst first."""
        found = [finding for check in self.checks for finding in check.findings]
        return tuple(sorted(found, key=lambda finding: -finding.severity))

    @property
    def healthy(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.findings

    @property
    def scheme(self) -> str | None:
        """The text of the first scheme that mends the worst finding that a scheme mends; None where there is none."""
        return next((finding.cure.schemes[0] for finding in self.findings if finding.cure.schemes), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "healthy": self.healthy,
            "findings": [finding.to_dict() for finding in self.findings],
            "checks": [{"name": check.name, "summary": check.summary, "asked": check.asked} for check in self.checks],
            "missed": [{"path": item.path, "reason": item.reason} for item in self.missed],
        }

    def __str__(self) -> str:
        words = "nothing wrong was found" if self.healthy else f"{len(self.findings)} found, the worst first"
        parts = [f"{words}; checked:", *(f"  {check.name}: {check.summary}" for check in self.checks)]
        for number, finding in enumerate(self.findings, 1):
            evidence = ", ".join(f"{name} {_short(value)}" for name, value in finding.evidence.items())
            lines = [f"{number}. {finding.title}", f"evidence: {evidence}", f"theory: {finding.theory}"]
            schemes = f" [{', '.join(finding.cure.schemes)}]" if finding.cure.schemes else ""
            lines.append(f"cure: {finding.cure.words}{schemes}")
            parts += [
                "",
                *(
                    fill(line, _WIDTH, subsequent_indent="   ", initial_indent="   " * (i > 0))
                    for i, line in enumerate(lines)
                ),
            ]
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
    """Examine a network on one batch, in training mode, and say what keeps it from training.

    The network and the optimizer are left as they were; steps are tried on copies.

    Args:
        model: the network.
        batch: (inputs, targets), of the size it is trained with; inputs are one tensor, a tuple or a dictionary of
            arguments.
        loss: (logits, targets) to a scalar in nats.
        optimizer: that is to train it; without one, what it decays and its first steps are not looked at.
        residual_map: the network's map, found where it is not given.
        trial_steps: how many steps of the optimizer are tried; 0 for none.

    Raises:
        ValueError: the batch is no pair, or no gradient can be measured.
        UnresolvedStructureError: the network must be traced and cannot be.
    """
    inputs, targets = split_batch(batch)
    seen = examine(model, inputs, targets, loss=loss, optimizer=optimizer, residual_map=residual_map)
    checks = [check(seen) for check in CHECKS]
    return Diagnosis((*checks, check_first_steps(seen, trial_steps)), seen.missed)


def _short(value: float | int | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
