"""Shared by the tests of the papers: contexts, checked evidence, made-up results, a network that a person trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import nn

from normless.models import build_model
from normless_lab.data import Augmentation, load_data
from normless_lab.plots import lines
from normless_lab.plots._page import svg_text
from normless_lab.sweeps import Laboratory
from normless_papers.artefact import Budget, Context, Evidence, artefact_of
from normless_papers.claims import Claim, Verdict
from normless_papers.evidence import beside
from normless_papers.published import published
from normless_papers.results.reproduction import Reproduction

MODEL = "normless:resnet(depth=18, channels=4, in_channels=1, classes=7)"
DATA = "digits(train=128, test=100)"


class InThisProcess:
    """An executor without processes, each of which would take seconds to import torch."""

    window = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: Any, group: Hashable = None) -> Future[Any]:
        """Carry out the function at once."""
        future: Future[Any] = Future()
        future.set_result(function(*args))
        return future


def context_in(folder: Path, budget: Budget = "smoke", **changes: Any) -> Context:
    """A context with a folder of its own in `folder`."""
    own = folder / "own"
    own.mkdir(parents=True, exist_ok=True)
    return Context(budget=budget, directory=own, **changes)


@dataclass(frozen=True)
class CheckedEvidence(Evidence):
    """What an artefact's function returned, and the checks made of its facts."""

    checks: tuple[Claim, ...] = ()


def checked(artefact: str, evidence: Evidence) -> CheckedEvidence:
    """Check the claim of an artefact on its evidence."""
    return CheckedEvidence(**vars(evidence), checks=artefact_of(artefact).checks_of(evidence))


def carried_out(artefact: str, context: Context, **changes: Any) -> CheckedEvidence:
    """An artefact with the settings of the context's budget, some of them changed, trained in this process."""
    found = artefact_of(artefact)
    with Laboratory(context.directory / "lab", executor=InThisProcess) as laboratory:
        return checked(artefact, found(context, found.runs(context, laboratory, **changes), **changes))


def assert_whole(artefact: str, evidence: CheckedEvidence) -> pd.DataFrame:
    """Every published row has a measured one, the figure draws; returns the merged table."""
    rows = artefact_of(artefact).published.rows
    assert len(evidence.measured)
    assert evidence.checks
    assert evidence.on or not rows, "published numbers stand beside measured ones"
    if evidence.draw is not None:
        assert "<svg" in svg_text(evidence.draw())
    merged = beside(rows, evidence.measured, evidence.on)
    if evidence.on and rows:
        own = [name for name in evidence.measured.columns if name not in evidence.on]
        names = [name if name in merged.columns else f"{name}_measured" for name in own]
        keys = {"/".join(_text(row[name]) for name in evidence.on) for row in rows}
        for _, row in merged.iterrows():
            key = "/".join(str(row[name]) for name in evidence.on)
            assert key not in keys or row[names].notna().any(), f"nothing measured beside the published row {key}"
    return merged


def check_of(evidence: CheckedEvidence, words: str) -> Claim:
    """Return the only check whose claim has these words."""
    found = [check for check in evidence.checks if words in check.claim]
    assert len(found) == 1, [check.claim for check in evidence.checks]
    return found[0]


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def verdict_of(checks: Sequence[Claim]) -> Verdict:
    """Return `fails` if any check fails, else `inconclusive` if any is or there are none, else `holds`."""
    verdicts = {own.verdict for own in checks}
    return "fails" if "fails" in verdicts else "holds" if verdicts == {"holds"} else "inconclusive"


def figure() -> Axes:
    """A figure of accuracies against depth."""
    rows = [{"depth": depth, "scheme": "fixup", "mean": 90 - depth / 10} for depth in (16, 100, 400)]
    return lines(pd.DataFrame(rows), x="depth", y="mean", title="Accuracies", y_label="test accuracy (%)")


def result_of(name: str, budget: Budget = "smoke", verdict: Verdict = "holds", **changes: Any) -> Reproduction:
    """A made-up result with two checks, the second of which decides, and three rows of numbers."""
    rows = [
        {key: ", ".join(map(str, held)) if isinstance(held, list) else held for key, held in row.items()}
        for row in published()[name].rows
    ]
    measured = pd.DataFrame(rows[:3] or [{"depth": 16, "loss": 0.25}, {"depth": 100, "loss": math.nan}])
    fields: dict[str, Any] = {
        "asked": {"data": None, "data_root": None, "seed": 0, "settings": {"depths": [16, 100]}},
        "basis": "training",
        "measured": measured,
        "on": (str(measured.columns[0]),) if rows else (),
        "checks": (
            Claim("The signal doubles in every block, to 10 %.", "holds", {"factor": 1.98, "tolerance": 0.2}),
            Claim("The loss falls.", verdict, {"first": 2.3, "last": math.nan, "bound": math.inf}),
        ),
        "setup": {"network": "Wide-ResNet-16-1", "data": "digits", "seeds": [0, 1], "epochs": 3},
        "remarks": ("One seed; compare fixup/table-1.",),
        "seconds": 1.5,
        "provenance": {"normless": "0.1.0", "machine": "x86_64, 2 cores", "date": "2026-11-21 18:00"},
        "figure": "Test accuracy against depth; none, fixup, batch_norm.",
    }
    return Reproduction(name, budget, **(fields | changes))


def folder_with(path: Path, text: str = MODEL) -> Path:
    """A network of seven classes, trained for some steps, in a folder with `model.txt` and a state dict."""
    torch.manual_seed(0)
    network, data = build_model(MODEL), load_data(DATA)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for batch in data.train_batches(32, seed=0, epoch=0, augmentation=Augmentation()):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(batch.inputs), batch.targets % 7).backward()
        optimizer.step()
    path.mkdir()
    (path / "model.txt").write_text(text + "\n")
    torch.save(network.state_dict(), path / "weights.pt")
    return path
