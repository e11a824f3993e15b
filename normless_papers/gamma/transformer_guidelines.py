"""Guidelines 1T, 3T and 4T: which γ of a transformer to decay."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import new_panels
from normless_papers.artefact import Context, artefact
from normless_papers.evidence import Evidence
from normless_papers.gamma import classification, translation
from normless_papers.gamma.classification import (
    EMBEDDING,
    TextEffort,
    accuracy_checks,
    as_printed,
    classifiers_compared,
    text_remarks,
    text_setup,
)
from normless_papers.gamma.comparison import BASELINE, L2, Comparison, compared
from normless_papers.gamma.translation import (
    TranslationEffort,
    bleu_checks,
    translation_remarks,
    translation_setup,
    translations_compared,
)
from normless_papers.plots import DIFFERENCES
from normless_papers.verdict import Check

OTHER = "gamma_other"
# Points of accuracy: what guideline 1T gains in table 4 of the paper.
WORTH_NAMING = 0.2

POINTS = "test accuracy less that with L2 on the weights alone, points"


@dataclass(frozen=True)
class BothTasks:
    """Translation by BLEU, and classification by test accuracy in percent."""

    by_bleu: Comparison
    by_accuracy: Comparison


def _guideline_1t_checks(found: BothTasks) -> list[Check]:
    return [*bleu_checks(found.by_bleu), *accuracy_checks(found.by_accuracy)]


@artefact("gamma/guideline-1t", basis="training", checks=_guideline_1t_checks)
def decay_gammas_of_blocks(
    context: Context, *, translation_effort: TranslationEffort, text_effort: TextEffort
) -> Evidence:
    """L2 on γ_1 or γ_2 raises BLEU, and L2 on both the accuracy of a classifier: the runs of tables 3 and 4."""
    translated, by_bleu = translations_compared(context, translation_effort)
    classified, by_accuracy = classifiers_compared(context, text_effort, "gamma/table-4", classification.POLICIES)
    bleu = by_bleu.table.assign(metric="BLEU")
    accuracy = by_accuracy.table.assign(metric="test accuracy, %")
    return Evidence(
        measured=pd.concat([bleu, accuracy], ignore_index=True),
        facts=BothTasks(by_bleu, by_accuracy),
        setup={
            "translation": translation_setup(context, translation_effort, translated),
            "classification": text_setup(context, text_effort, classified),
        },
        draw=lambda: _both(by_bleu, by_accuracy),
        remarks=(
            *translation_remarks(translation_effort, translated),
            *text_remarks(text_effort, classified),
            "The guideline rests on transformer blocks that accumulate variance, which those of pre-norm do; in BERT "
            "and the original transformer the norm acts on the stream after the sum.",
        ),
        reduction=translation.text_reduction(context, translation_effort)
        or classification.text_reduction(context, text_effort),
    )


def _guideline_3t_checks(comparison: Comparison) -> list[Check]:
    """It should not be decayed, so that nothing worth naming may be gained by that."""
    return [
        comparison.better(
            f"L2 on γ_0 does not help: it gains less than {WORTH_NAMING:g} points of accuracy.",
            EMBEDDING,
            wanted=False,
            by=-WORTH_NAMING,
        )
    ]


@artefact("gamma/guideline-3t", basis="training", checks=_guideline_3t_checks)
def spare_gamma_of_embeddings(context: Context, *, effort: TextEffort) -> Evidence:
    """L2 on γ_0, that of the embeddings' norm, does not help a BERT classifier."""
    policies = {BASELINE: "weights", EMBEDDING: "weights+stem"}
    result, comparison = classifiers_compared(context, effort, "gamma/guideline-3t", policies)
    return Evidence(
        measured=as_printed(comparison),
        facts=comparison,
        setup=text_setup(context, effort, result),
        draw=lambda: DIFFERENCES(
            comparison.differences(L2),
            y=L2,
            inks=classification.INKS,
            title="L2 on γ of BERT's embeddings",
            x_label=POINTS,
        ),
        remarks=text_remarks(effort, result),
        reduction=classification.text_reduction(context, effort),
    )


def _guideline_4t_checks(comparison: Comparison) -> list[Check]:
    return [comparison.better("L2 on γ after the last block lowers the training loss.", OTHER, norm="pre")]


@artefact("gamma/guideline-4t", basis="training", checks=_guideline_4t_checks)
def decay_gamma_before_head(context: Context, *, effort: TranslationEffort) -> Evidence:
    """L2 on γ of the norm between the last block and the head improves the optimization: a lower training loss."""
    policies = {BASELINE: "weights", OTHER: "weights+other"}
    sweep = effort.sweep(context, "gamma/guideline-4t", policies, norms=("pre",))
    result = context.lab.run(sweep, metrics=("training_loss",))
    comparison = compared(result, "training_loss")
    return Evidence(
        measured=comparison.table.rename(columns={"mean": "training_loss"}),
        facts=comparison,
        setup=translation_setup(context, effort, result),
        draw=lambda: DIFFERENCES(
            comparison.differences(L2),
            y=L2,
            inks=translation.INKS,
            title="L2 on γ ahead of the head",
            x_label="training loss less that with L2 on the weights alone, nats",
        ),
        remarks=(
            *translation_remarks(effort, result),
            "There is such a norm where norms lie ahead of the branches: after the last block of the encoder and of "
            "the decoder. The paper has no experiment; what is optimized is the training loss of the last epoch.",
        ),
        reduction=translation.text_reduction(context, effort),
    )


def _both(by_bleu: Comparison, by_accuracy: Comparison) -> Axes:
    upper, lower = new_panels(1, 2, width=4.9, height=3.2)
    DIFFERENCES(
        by_bleu.differences("norm", L2),
        upper,
        y=L2,
        inks=translation.INKS,
        title="Translation",
        x_label="BLEU less that with L2 on the weights alone",
        groups="norm",
    )
    return DIFFERENCES(
        by_accuracy.differences(L2), lower, y=L2, inks=classification.INKS, title="Classification", x_label=POINTS
    )
