"""Diagnosers that the benchmark can run: normless, a baseline, and published ones that are installed.

Three others have no adapter. Cockpit (cockpit-for-pytorch) and torchinstruments record statistics of a training and
state no verdict, so that there is nothing to score. TrainCheck 0.2 rewrites a script, compares it with invariants of
a similar healthy script, and needs a CUDA driver: it takes neither a model and a batch nor a loop.
"""

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.faults import measures
from benchmarks.faults.case import Batch, Loop, LossFunction, Training

Diagnose = Callable[[nn.Module, Batch, LossFunction, Optimizer], Sequence[str]]
Watch = Callable[[Loop], Sequence[str]]


@dataclass(frozen=True)
class Rival:
    """Hold a diagnoser.

    Attributes:
        name: how tables call it.
        diagnose: returns ranked texts for (model, batch, loss, optimizer); None if it needs a loop.
        watch: runs a loop and returns ranked texts; None if it does not watch loops.
        package: the package that must be installed.
    """

    name: str
    diagnose: Diagnose | None
    watch: Watch | None
    package: str

    @property
    def installed(self) -> bool:
        """Return whether the package of the diagnoser is installed."""
        return importlib.util.find_spec(self.package) is not None


def normless_diagnose(model: nn.Module, batch: Batch, loss: LossFunction, optimizer: Optimizer) -> list[str]:
    """Return the findings of `normless.diagnose`, without its advice."""
    import normless as nl

    return [str(finding) for finding in nl.diagnose(model, batch, loss=loss, optimizer=optimizer).findings]


def normless_watch(loop: Loop) -> list[str]:
    """Return the messages of `normless.watch`."""
    import normless as nl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with nl.watch(loop.model) as watch:

            def observe(loss: Tensor) -> None:
                watch.loss(loss)

            loop.run(loop.model, loop.batches, loop.optimizer, observe)
    return [str(message) for message in watch.messages]


def baseline_diagnose(model: nn.Module, batch: Batch, loss: LossFunction, optimizer: Optimizer) -> list[str]:
    """Return one text if 50 steps on the batch do not halve the loss: the least that a diagnoser may know."""
    losses = measures.train(Training(model, batch, loss, optimizer, lambda: 0.0), 50)
    return _judged(losses)


def baseline_watch(loop: Loop) -> list[str]:
    """Return one text if the loop does not halve the loss."""
    return _judged(measures.run_loop(loop))


def _judged(losses: Sequence[float]) -> list[str]:
    first, last = losses[0], sum(losses[-5:]) / len(losses[-5:])
    if last != last or last - first > abs(first):
        return [f"the loss is not finite or diverges: {first:.3g} → {last:.3g}"]
    return [] if last <= 0.5 * first else [f"the batch is not fitted: the loss stays at {first:.3g} → {last:.3g}"]


def torch_audit_diagnose(model: nn.Module, batch: Batch, loss: LossFunction, optimizer: Optimizer) -> list[str]:
    """Return the findings of torch-audit on five steps, the most severe first, without its advice on speed."""
    return _audited(model, optimizer, lambda: measures.train(Training(model, batch, loss, optimizer, lambda: 0.0), 5))


def torch_audit_watch(loop: Loop) -> list[str]:
    """Return the findings of torch-audit on a loop, the most severe first."""
    return _audited(loop.model, loop.optimizer, lambda: measures.run_loop(loop))


_ADVICE = (
    "TA2",
    "TA400",
    "TA401",
    "TA402",
    "TA403",
    "TA404",
)  # speed and style: no statement that something is wrong


def _audited(model: nn.Module, optimizer: Optimizer, run: Callable[[], object]) -> list[str]:
    audit: Any = importlib.import_module("torch_audit")
    rank = {"FATAL": 0, "ERROR": 1, "WARN": 2, "INFO": 3}
    auditor = audit.autopatch(
        model, optimizer=optimizer, every_n_steps=1, reporters=[], run_static=True, run_init=True
    )
    run()
    findings = auditor.finish(report=False).findings
    auditor.unpatch()
    chosen: dict[tuple[str, str | None], str] = {}
    for finding in sorted(findings, key=lambda finding: rank[finding.severity.value]):
        if finding.severity.value != "INFO" and not finding.rule_id.startswith(_ADVICE):
            chosen.setdefault(
                (finding.rule_id, finding.module_path), f"{finding.message} [{finding.module_path or ''}]"
            )
    return list(chosen.values())


RIVALS = {
    "normless": Rival("normless", normless_diagnose, normless_watch, "normless"),
    "baseline": Rival("baseline", baseline_diagnose, baseline_watch, "torch"),
    "torch-audit": Rival("torch-audit", torch_audit_diagnose, torch_audit_watch, "torch_audit"),
}


def rival(name: str) -> Rival:
    """Return a diagnoser of `RIVALS`, or "module:function" for a function of (model, batch, loss, optimizer).

    Raises:
        ValueError: no diagnoser has this name, or its package is not installed.
    """
    if ":" in name:
        module, function = name.split(":")
        return Rival(name, getattr(importlib.import_module(module), function), None, "torch")
    if name not in RIVALS:
        raise ValueError(f"No diagnoser is called {name!r}; choose one of {', '.join(RIVALS)}, or module:function.")
    if not RIVALS[name].installed:
        raise ValueError(
            f"{name} needs the package {RIVALS[name].package}, which is not installed; install it or skip it."
        )
    return RIVALS[name]
