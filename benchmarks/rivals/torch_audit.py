"""The findings of torch-audit, the most severe first, without its advice on speed and style."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from tests.faults.catalogue import Loop, Training
from tests.faults.diagnosers import on_one_batch
from tests.faults.training import run_loop

ADVICE = ("TA2", "TA400", "TA401", "TA402", "TA403", "TA404")  # no statement that something is wrong
RANK = {"FATAL": 0, "ERROR": 1, "WARN": 2, "INFO": 3}


def torch_audit_diagnose(training: Training) -> list[str]:
    """Return the findings on five steps."""
    return _audited(training.model, training.optimizer, lambda: on_one_batch(training, 5))


def torch_audit_watch(loop: Loop) -> list[str]:
    """Return the findings on a loop."""
    return _audited(loop.model, loop.optimizer, lambda: run_loop(loop))


def _audited(model: nn.Module, optimizer: Optimizer | None, run: Callable[[], object]) -> list[str]:
    audit: Any = importlib.import_module("torch_audit")
    options = {"every_n_steps": 1, "reporters": [], "run_static": True, "run_init": True}
    auditor = audit.autopatch(model, optimizer=optimizer, **options)
    run()
    findings = auditor.finish(report=False).findings
    auditor.unpatch()
    chosen: dict[tuple[str, str | None], str] = {}
    for finding in sorted(findings, key=lambda finding: RANK[finding.severity.value]):
        if finding.severity.value != "INFO" and not finding.rule_id.startswith(ADVICE):
            place = finding.module_path or ""
            chosen.setdefault((finding.rule_id, finding.module_path), f"{finding.message} [{place}]")
    return list(chosen.values())
