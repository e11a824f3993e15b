"""Table 3: BLEU of a transformer with L2 on its weights, and on γ_1 or γ_2 beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pandas as pd

from normless.data import TRANSLATION_SOURCES
from normless.plots import ROLE_INKS
from normless.sweeps import RateGrid, Sweep, SweepResult
from normless_papers.artefact import Context, artefact
from normless_papers.evidence import Evidence
from normless_papers.gamma.comparison import BASELINE, L2, Comparison, compared
from normless_papers.plots import DIFFERENCES
from normless_papers.run_summary import failures, setup_of
from normless_papers.texts import text_or
from normless_papers.verdict import Check

# Attention comes first in a block and feed-forward second; in the decoder both attentions count as first.
FIRST, SECOND = "gamma_1", "gamma_2"
POLICIES = MappingProxyType(
    {
        BASELINE: "weights",
        FIRST: "weights+*attention.norm.weight",
        SECOND: "weights+*feed_forward.norm.weight",
    }
)
INKS = MappingProxyType(
    {FIRST: ROLE_INKS["γ last"], SECOND: ROLE_INKS["γ stem"], "gamma_other": ROLE_INKS["γ other"]}
)
NORMS = ("post", "pre")
# Of the transformer that the text cites.
ORIGINAL = "post"


@dataclass(frozen=True)
class TranslationEffort:
    """How much of the translation experiments is carried out; by default all of it, as fairseq trains on IWSLT-14.

    Attributes:
        network: arguments of normless:transformer, all but where the norms lie.
        norms: where they lie, post or pre.
        data: the parallel text.
        settings: of every run, others than the network and what decays.
        rates: the learning rates that are tried.
        replicates: runs that are averaged.
        reduced: what is smaller than in the paper, in words; empty if nothing is.
    """

    network: str = "layers=6, width=512, heads=4, feed_forward=1024, dropout=0.3"
    norms: tuple[str, ...] = NORMS
    data: str = "parallel_text"
    settings: Mapping[str, Any] = field(
        default_factory=lambda: {
            "vocabulary": 10_000,
            "longest": 175,
            "batch_tokens": 4096,
            "epochs": 50,
            "warmup_steps": 4000,
            "weight_decay": 1e-4,
            "beam_width": 5,
        }
    )
    rates: RateGrid = field(default_factory=lambda: RateGrid((5e-4,), None))
    replicates: int = 3
    reduced: str = ""

    def sweep(self, context: Context, name: str, policies: Mapping[str, str], norms: Sequence[str] = ()) -> Sweep:
        """The transformer of each placement with each choice of what decays; axes `norm` and `l2`."""
        places = norms or self.norms
        return Sweep(
            name=name,
            run="train-translation",
            base={
                "data": text_or(context, self.data, TRANSLATION_SOURCES),
                "data_root": context.data_root,
                "decoupled_decay": True,
                **self.settings,
            },
            axes={
                "norm": {one: {"model": f"normless:transformer({self.network}, norm='{one}')"} for one in places},
                L2: {label: {"decay_policy": policy} for label, policy in policies.items()},
            },
            rates=self.rates,
            replicates=self.replicates,
            best=self.replicates,
            seed=context.seed,
        )


def bleu_checks(comparison: Comparison) -> list[Check]:
    """Both γ raise BLEU of the original transformer, whose norms follow the sums."""
    return [
        comparison.better(f"L2 on {l2} beside the weights raises BLEU.", l2, norm=ORIGINAL) for l2 in (FIRST, SECOND)
    ]


@artefact("gamma/table-3", basis="training", checks=bleu_checks)
def bleu_by_gamma(context: Context, *, effort: TranslationEffort) -> Evidence:
    """BLEU with L2 on W, on W and γ_1, on W and γ_2: both raise it."""
    result, comparison = translations_compared(context, effort)
    return Evidence(
        measured=_as_printed(comparison),
        facts=comparison,
        setup=translation_setup(context, effort, result),
        on=("l2",),
        draw=lambda: DIFFERENCES(
            comparison.differences("norm", L2),
            y=L2,
            inks=INKS,
            title="L2 on γ of a transformer",
            x_label="BLEU less that with L2 on the weights alone",
            groups="norm",
        ),
        remarks=translation_remarks(effort, result),
        reduction=text_reduction(context, effort),
    )


def translations_compared(context: Context, effort: TranslationEffort) -> tuple[SweepResult, Comparison]:
    """The sweep of table 3, and its comparison by BLEU of the beam search on the test set."""
    result = context.lab.run(effort.sweep(context, "gamma/table-3", POLICIES), metrics=("bleu",))
    return result, compared(result, "bleu")


def text_reduction(context: Context, effort: TranslationEffort) -> str:
    """What is not the paper's, the data that the user asks for included; empty if nothing is."""
    return effort.reduced or ("" if context.keeps(effort.data) else f"{context.data} in the place of {effort.data}.")


def translation_setup(context: Context, effort: TranslationEffort, result: SweepResult) -> dict[str, Any]:
    """How such a sweep was carried out."""
    reduced = {"reduced": effort.reduced} if effort.reduced else {}
    return setup_of(context.lab, result) | reduced


def translation_remarks(effort: TranslationEffort, result: SweepResult) -> tuple[str, ...]:
    """What a reader of such a sweep must know."""
    found = [
        "The paper's appendix with λ, rates and lengths is not at hand, and where its norms lie is not said: it is "
        "asked of the transformer that it cites, which has them after the sums. The settings are fairseq's for this "
        "text, or ours. The decay is decoupled from the gradient, as fairseq's Adam has it: in the gradient Adam "
        "would take most of it away.",
        "γ_1 is that of every attention's norm, γ_2 that of the feed-forward layers'; in the decoder both attentions "
        "count as first.",
        *failures(result),
    ]
    if effort.reduced:
        found.append(f"Not the paper's setup: {effort.reduced}.")
    if effort.replicates == 1:
        found.append("A single run of each: its error is not known, so that comparisons stay undecided.")
    return tuple(found)


def _as_printed(comparison: Comparison) -> pd.DataFrame:
    """Rows named as the paper's, with its columns `bleu` and `diff`."""
    names = {BASELINE: "W", FIRST: "W, gamma_1", SECOND: "W, gamma_2"}
    table = comparison.table.rename(columns={"mean": "bleu", "difference": "diff", "error": "diff_error"})
    return table.assign(l2=table[L2].map(names))
