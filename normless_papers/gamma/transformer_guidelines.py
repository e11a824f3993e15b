"""L2 on the γ of transformers: translation (table 3), BERT (table 4), and guidelines 1T, 3T and 4T."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes

from normless.data import default_root
from normless.plots import ROLE_INKS, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check
from normless_papers.effort import Effort
from normless_papers.gamma.decay_comparison import BASELINE, DecayComparison, compared

# Attention comes first in a block and feed-forward second; in the decoder both attentions count as first.
FIRST, SECOND, OTHER = "gamma_1", "gamma_2", "gamma_other"
TRANSLATION_POLICIES = MappingProxyType(
    {
        BASELINE: "weights",
        FIRST: "weights+*attention.norm.weight",
        SECOND: "weights+*feed_forward.norm.weight",
    }
)
# In BERT both norms of a block end it, so that the two γ are those of role `last`, and the embeddings' is `stem`.
BOTH, EMBEDDING = "gamma_1, gamma_2", "gamma_0"
BERT_POLICIES = MappingProxyType({BASELINE: "weights", BOTH: "weights+last"})
INKS = MappingProxyType(
    {
        FIRST: ROLE_INKS["γ last"],
        SECOND: ROLE_INKS["γ stem"],
        OTHER: ROLE_INKS["γ other"],
        BOTH: ROLE_INKS["γ last"],
        EMBEDDING: ROLE_INKS["γ stem"],
    }
)
# Points of accuracy: what guideline 1T gains in table 4 of the paper.
WORTH_NAMING = 0.2
_BLEU = "BLEU less that with L2 on the weights alone"
_TRANSLATION_REMARKS = (
    "The paper's appendix with λ, rates and lengths is not available, and its norms' place is not stated: checks are "
    "of the transformer that it cites, which has them after the sums. The settings are fairseq's for this text, "
    "or ours. The decay is decoupled from the gradient, as in fairseq's Adam: in the gradient Adam would remove most "
    "of it.",
    "γ_1 is that of every attention's norm, γ_2 that of the feed-forward layers'; in the decoder both attentions "
    "count as first.",
)
_BERT_REMARKS = (
    "The paper's appendix with λ, rates and lengths is not available; the settings are those that BERT is usually "
    "fine-tuned with, or ours. Its checkpoint is not downloaded: the paper budget reads the folder bert-base-uncased "
    "in the folder of the data sets.",
)


def translations(context: Context, effort: Effort) -> DecayComparison:
    """The sweep of table 3: every placement of the norms with each choice; axes `norm` and `l2`."""
    return compared(context, effort, "gamma/table-3", {"norm": effort.variants}, TRANSLATION_POLICIES, "bleu")


def classifiers(context: Context, effort: Effort, name: str, policies: Mapping[str, str]) -> DecayComparison:
    """A BERT classifier with each choice; its model is a checkpoint's folder if it has no brackets."""
    root = default_root() if context.data_root is None else Path(context.data_root).expanduser()
    model = effort.model if "(" in effort.model else f"{root / effort.model}"
    return compared(context, effort, name, {}, policies, model=f"transformers:{model}")


def _bleu_checks(found: DecayComparison) -> list[Check]:
    """The transformer that the text cites has its norms after the sums."""
    return [found.better(f"L2 on {l2} besides the weights raises BLEU.", l2, norm="post") for l2 in (FIRST, SECOND)]


@artefact("gamma/table-3", basis="training", checks=_bleu_checks)
def bleu_by_gamma(context: Context, *, effort: Effort) -> Evidence:
    """BLEU with L2 on W, on W and γ_1, on W and γ_2: both raise it."""
    found = translations(context, effort)
    return found.evidence(
        lambda: found.draw(INKS, "L2 on γ of a transformer", _BLEU, groups="norm"),
        measured=found.printed("bleu"),
        on=("l2",),
        remarks=_TRANSLATION_REMARKS,
    )


def _accuracy_checks(found: DecayComparison) -> list[Check]:
    return [found.better("L2 on γ_1 and γ_2 besides the weights raises the test accuracy of BERT.", BOTH)]


@artefact("gamma/table-4", basis="training", checks=_accuracy_checks)
def accuracy_of_bert(context: Context, *, effort: Effort) -> Evidence:
    """Test accuracy with L2 on W, and on W, γ_1 and γ_2: it is 0.2 points higher."""
    found = classifiers(context, effort, "gamma/table-4", BERT_POLICIES)
    return found.evidence(
        lambda: found.draw(INKS, "L2 on γ of BERT"),
        measured=found.printed("accuracy"),
        on=("l2",),
        remarks=_BERT_REMARKS,
    )


@dataclass(frozen=True)
class BothTasks:
    """Translation by BLEU, and classification by test accuracy in percent."""

    by_bleu: DecayComparison
    by_accuracy: DecayComparison


def _guideline_1t_checks(found: BothTasks) -> list[Check]:
    return [*_bleu_checks(found.by_bleu), *_accuracy_checks(found.by_accuracy)]


@artefact("gamma/guideline-1t", basis="training", checks=_guideline_1t_checks)
def decay_gammas_of_blocks(context: Context, *, translation_effort: Effort, text_effort: Effort) -> Evidence:
    """L2 on γ_1 or γ_2 raises BLEU, and L2 on both the accuracy of a classifier: the runs of tables 3 and 4."""
    bleu = translations(context, translation_effort)
    accuracy = classifiers(context, text_effort, "gamma/table-4", BERT_POLICIES)
    tables = [bleu.table.assign(metric="BLEU"), accuracy.table.assign(metric="test accuracy, %")]

    def draw() -> Axes:
        upper, lower = new_panels(1, 2, width=4.9, height=3.2)
        bleu.draw(INKS, "Translation", _BLEU, upper, groups="norm")
        return accuracy.draw(INKS, "Classification", ax=lower)

    return Evidence(
        measured=pd.concat(tables, ignore_index=True),
        facts=BothTasks(bleu, accuracy),
        setup={"translation": bleu.runs.setup, "classification": accuracy.runs.setup},
        draw=draw,
        remarks=(
            *bleu.evidence(draw, remarks=_TRANSLATION_REMARKS).remarks,
            *accuracy.evidence(draw, remarks=_BERT_REMARKS).remarks,
            "The guideline rests on transformer blocks that accumulate variance, which those of pre-norm do; in BERT "
            "and the original transformer the norm acts on the stream after the sum.",
        ),
        reduction=bleu.runs.reduction or accuracy.runs.reduction,
    )


def _guideline_3t_checks(found: DecayComparison) -> list[Check]:
    claim = f"L2 on γ_0 does not help: it gains less than {WORTH_NAMING:g} points of accuracy."
    return [found.better(claim, EMBEDDING, wanted=False, by=-WORTH_NAMING)]


@artefact("gamma/guideline-3t", basis="training", checks=_guideline_3t_checks)
def spare_gamma_of_embeddings(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_0, that of the embeddings' norm, does not help a BERT classifier."""
    policies = {BASELINE: "weights", EMBEDDING: "weights+stem"}
    found = classifiers(context, effort, "gamma/guideline-3t", policies)
    return found.evidence(
        lambda: found.draw(INKS, "L2 on γ of BERT's embeddings"),
        measured=found.printed("accuracy"),
        remarks=_BERT_REMARKS,
    )


def _guideline_4t_checks(found: DecayComparison) -> list[Check]:
    return [found.better("L2 on γ after the last block lowers the training loss.", OTHER, norm="pre")]


@artefact("gamma/guideline-4t", basis="training", checks=_guideline_4t_checks)
def decay_gamma_before_head(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ of the norm between the last block and the head improves the optimization: a lower training loss."""
    policies = {BASELINE: "weights", OTHER: "weights+other"}
    axes = {"norm": effort.variants}
    found = compared(context, effort, "gamma/guideline-4t", axes, policies, "training_loss")
    across = "training loss less that with L2 on the weights alone, nats"
    return found.evidence(
        lambda: found.draw(INKS, "L2 on γ before the head", across),
        measured=found.table.rename(columns={"mean": "training_loss"}),
        remarks=(
            *_TRANSLATION_REMARKS,
            "There is such a norm where norms precede the branches: after the last block of the encoder and of the "
            "decoder. The paper has no experiment; what is compared is the training loss of the last epoch.",
        ),
    )
