"""Table 4: accuracy of BERT on SST-2 with L2 on its weights, and on γ_1 and γ_2 beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from normless.data import TEXT_SOURCES, default_root
from normless.plots import ROLE_INKS
from normless.sweeps import RateGrid, Sweep, SweepResult
from normless_papers.artefact import Context, artefact
from normless_papers.evidence import Evidence
from normless_papers.gamma.comparison import BASELINE, L2, Comparison, compared
from normless_papers.plots import DIFFERENCES
from normless_papers.run_summary import failures, setup_of
from normless_papers.texts import text_or
from normless_papers.verdict import Check

BOTH, EMBEDDING = "gamma_1, gamma_2", "gamma_0"
# In BERT both norms of a block end it, so that the two γ are those of role `last`, and the embeddings' is `stem`.
POLICIES = MappingProxyType({BASELINE: "weights", BOTH: "weights+last"})
INKS = MappingProxyType({BOTH: ROLE_INKS["γ last"], EMBEDDING: ROLE_INKS["γ stem"]})

CHECKPOINT = "bert-base-uncased"


@dataclass(frozen=True)
class TextEffort:
    """How much of the BERT experiments is carried out; by default all of it, as BERT is fine-tuned.

    Attributes:
        model: the network as text; a checkpoint's folder in the folder of the data sets if it has no brackets.
        data: the labelled text.
        settings: of every run, others than the network and what decays.
        rates: the learning rates that are tried.
        replicates: runs that are averaged.
        reduced: what is smaller than in the paper, in words; empty if nothing is.
    """

    model: str = CHECKPOINT
    data: str = "sst2"
    settings: Mapping[str, Any] = field(
        default_factory=lambda: {"epochs": 3, "batch_size": 32, "longest": 128, "weight_decay": 0.01}
    )
    rates: RateGrid = field(default_factory=lambda: RateGrid((2e-5,), None))
    replicates: int = 3
    reduced: str = ""

    def sweep(self, context: Context, name: str, policies: Mapping[str, str]) -> Sweep:
        """The classifier with each choice of what decays; axis `l2`."""
        root = default_root() if context.data_root is None else Path(context.data_root).expanduser()
        model = self.model if "(" in self.model else f"{root / self.model}"
        return Sweep(
            name=name,
            run="train-text",
            base={
                "model": f"transformers:{model}",
                "data": text_or(context, self.data, TEXT_SOURCES),
                "data_root": context.data_root,
                **self.settings,
            },
            axes={L2: {label: {"decay_policy": policy} for label, policy in policies.items()}},
            rates=self.rates,
            replicates=self.replicates,
            best=self.replicates,
            seed=context.seed,
        )


def accuracy_checks(comparison: Comparison) -> list[Check]:
    """Both γ of the blocks raise the accuracy of a classifier."""
    return [comparison.better("L2 on γ_1 and γ_2 beside the weights raises the test accuracy of BERT.", BOTH)]


@artefact("gamma/table-4", basis="training", checks=accuracy_checks)
def accuracy_of_bert(context: Context, *, effort: TextEffort) -> Evidence:
    """Test accuracy with L2 on W, and on W, γ_1 and γ_2: it is 0.2 points higher."""
    result, comparison = classifiers_compared(context, effort, "gamma/table-4", POLICIES)
    return Evidence(
        measured=as_printed(comparison),
        facts=comparison,
        setup=text_setup(context, effort, result),
        on=("l2",),
        draw=lambda: DIFFERENCES(
            comparison.differences(L2),
            y=L2,
            inks=INKS,
            title="L2 on γ of BERT",
            x_label="test accuracy less that with L2 on the weights alone, points",
        ),
        remarks=text_remarks(effort, result),
        reduction=text_reduction(context, effort),
    )


def text_reduction(context: Context, effort: TextEffort) -> str:
    """What is not the paper's, the data that the user asks for included; empty if nothing is."""
    return effort.reduced or ("" if context.keeps(effort.data) else f"{context.data} in the place of {effort.data}.")


def classifiers_compared(
    context: Context, effort: TextEffort, name: str, policies: Mapping[str, str]
) -> tuple[SweepResult, Comparison]:
    """A sweep over what decays, and its comparison by test accuracy in percent."""
    result = context.lab.run(effort.sweep(context, name, policies))
    return result, compared(result, "test_accuracy")


def as_printed(comparison: Comparison) -> pd.DataFrame:
    """Rows named as the paper's, with its columns `accuracy` and `diff`."""
    table = comparison.table.rename(columns={"mean": "accuracy", "difference": "diff", "error": "diff_error"})
    return table.assign(l2=[label if label == BASELINE else f"W, {label}" for label in table[L2]])


def text_setup(context: Context, effort: TextEffort, result: SweepResult) -> dict[str, Any]:
    """How such a sweep was carried out."""
    reduced = {"reduced": effort.reduced} if effort.reduced else {}
    return setup_of(context.lab, result) | reduced


def text_remarks(effort: TextEffort, result: SweepResult) -> tuple[str, ...]:
    """What a reader of such a sweep must know."""
    found = [
        "The paper's appendix with λ, rates and lengths is not at hand; the settings are those that BERT is usually "
        f"fine-tuned with, or ours. Its checkpoint is not downloaded: the paper budget reads the folder {CHECKPOINT} "
        "in the folder of the data sets.",
        *failures(result),
    ]
    if effort.reduced:
        found.append(f"Not the paper's setup: {effort.reduced}.")
    return tuple(found)
