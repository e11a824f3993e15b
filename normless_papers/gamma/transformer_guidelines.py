"""Kim et al. on transformers: L2 on γ in translation (table 3) and BERT (table 4), guidelines 1T, 3T and 4T."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes

from normless_lab.data import default_root
from normless_lab.plots import ROLE_INKS, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.evidence import QUANTITY
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs, evidence_of
from normless_papers.gamma.decay_comparison import BASELINE, DecayComparison, compared, decay_training

# Attention comes first in a block and feed-forward second; in the decoder both attentions count as first.
FIRST, SECOND, OTHER = "gamma_1", "gamma_2", "gamma_other"
TRANSLATION_POLICIES = MappingProxyType(
    {BASELINE: "weights", FIRST: "weights+*attention.norm.weight", SECOND: "weights+*feed_forward.norm.weight"}
)
# Both norms of a BERT block follow its sums, so both γ have the role `last`; that of the embeddings has `stem`.
BOTH, EMBEDDING = "gamma_1, gamma_2", "gamma_0"
BERT_POLICIES = MappingProxyType({BASELINE: "weights", BOTH: "weights+last"})
_ROLES = {FIRST: "γ last", SECOND: "γ stem", OTHER: "γ other", BOTH: "γ last", EMBEDDING: "γ stem"}
INKS = MappingProxyType({name: ROLE_INKS[role] for name, role in _ROLES.items()})
_BLEU = "BLEU less that with L2 on the weights alone"


def translations(context: Context, *, effort: Effort) -> TrainingSweeps:
    """Declare table 3's sweep: every placement of the norms with each decay policy; axes `norm` and `l2`."""
    axes = {"norm": effort.variants}
    return decay_training(context, effort, "gamma/table-3", axes, TRANSLATION_POLICIES, metric="bleu")


def classifiers(
    context: Context,
    *,
    effort: Effort,
    name: str = "gamma/table-4",
    policies: Mapping[str, str] = BERT_POLICIES,
) -> TrainingSweeps:
    """Declare a BERT classifier with each decay policy; a model without brackets is a checkpoint's folder."""
    root = default_root() if context.data_root is None else Path(context.data_root).expanduser()
    model = effort.model if "(" in effort.model else f"{root / effort.model}"
    return decay_training(context, effort, name, {}, policies, model=f"transformers:{model}")


@artefact("gamma/table-3", basis="training", trains=translations)
def bleu_by_gamma(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    comparison = compared(runs)
    return comparison.evidence(
        lambda: comparison.draw(INKS, "L2 on γ of a transformer", _BLEU, groups="norm"),
        measured=comparison.printed("bleu"),
        on=("l2",),
    )


@artefact("gamma/table-4", basis="training", trains=classifiers)
def accuracy_of_bert(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    return _of_classifiers(compared(runs), "L2 on γ of BERT", on=("l2",))


def _of_classifiers(comparison: DecayComparison, title: str, on: tuple[str, ...] = QUANTITY) -> Evidence:
    draw = partial(comparison.draw, INKS, title)
    return comparison.evidence(draw, measured=comparison.printed("accuracy"), on=on)


def _both_tasks(context: Context, *, translation_effort: Effort, text_effort: Effort) -> dict[str, TrainingSweeps]:
    return {
        "translation": translations(context, effort=translation_effort),
        "classification": classifiers(context, effort=text_effort),
    }


@artefact("gamma/guideline-1t", basis="training", trains=_both_tasks)
def decay_gammas_of_blocks(
    context: Context, runs: Mapping[str, Runs], *, translation_effort: Effort, text_effort: Effort
) -> Evidence:
    bleu, accuracy = map(compared, runs.values())
    tables = [bleu.table.assign(metric="BLEU"), accuracy.table.assign(metric="test accuracy, %")]

    def draw() -> Axes:
        upper, lower = new_panels(1, 2, width=4.9, height=3.2)
        bleu.draw(INKS, "Translation", _BLEU, upper, groups="norm")
        return accuracy.draw(INKS, "Classification", ax=lower)

    return evidence_of(
        runs,
        pd.concat(tables, ignore_index=True),
        draw,
        facts={"translation": bleu, "classification": accuracy},
        remarks=[*bleu.remarks, *accuracy.remarks],
    )


@artefact(
    "gamma/guideline-3t",
    basis="training",
    trains=partial(classifiers, name="gamma/guideline-3t", policies={BASELINE: "weights", EMBEDDING: "weights+stem"}),
)
def spare_gamma_of_embeddings(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    return _of_classifiers(compared(runs), "L2 on γ of BERT's embeddings")


def _with_last_gamma(context: Context, *, effort: Effort) -> TrainingSweeps:
    policies = {BASELINE: "weights", OTHER: "weights+other"}
    axes = {"norm": effort.variants}
    return decay_training(context, effort, "gamma/guideline-4t", axes, policies, metric="training_loss")


@artefact("gamma/guideline-4t", basis="training", trains=_with_last_gamma)
def decay_gamma_before_head(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    comparison = compared(runs)
    across = "training loss less that with L2 on the weights alone, nats"
    return comparison.evidence(
        lambda: comparison.draw(INKS, "L2 on γ before the head", across),
        measured=comparison.table.rename(columns={"mean": "training_loss"}),
    )
