"""Table 3: machine translation by a Transformer without normalization, compared with layer normalization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import lines, scheme_ink
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, at_scale, check, in_every, larger
from normless_papers.effort import Effort
from normless_papers.published import published_as
from normless_papers.runs import Runs, carry_out, evidence_of

# The table's names of methods on a text, where they are not our own.
PRINTED = MappingProxyType({("wmt_en_de", "layer_norm"): "layer_norm (Ott et al. 2018)"})
# A smaller difference of BLEU is a match; the paper's own are 0.3 and 0.
MATCH = 1.0
# A smaller difference of mean training accuracies is as fast; and how many runs it takes to call a method stable.
_AS_FAST, _RUNS = 5.0, 3


def _checks(by_text: Mapping[str, Runs]) -> list[Check]:
    return [one for name, runs in by_text.items() for one in _checks_of(name, runs)]


def _checks_of(name: str, runs: Runs) -> list[Check]:
    bleu, curve = (runs.finals(column, "method") for column in ("bleu", "curve"))
    fixup = runs.chosen(method="fixup")
    trained = f"On {name} Fixup trains at the rate of layer normalization."
    as_fast = (
        f"On {name} it is as fast: its accuracy on training tokens, the mean over epochs, is less than "
        f"{_AS_FAST:g} points below layer normalization's."
    )
    match = f"On {name} Fixup's BLEU is at least that of layer normalization less {MATCH:g}."
    return [
        runs.trains(trained, against={"method": "layer_norm"}, method="fixup"),
        larger(as_fast, curve["fixup"], curve["layer_norm"], by=-_AS_FAST),
        stable(f"On {name} training by Fixup is stable: no run diverges.", fixup, fixup["outcome"] != "diverged"),
        at_scale(larger(match, bleu["fixup"], bleu["layer_norm"], by=-MATCH), runs.reduction),
    ]


def stable(claim: str, runs: pd.DataFrame, flags: pd.Series) -> Check:
    """Whether a flag is set for every run that did not fail with an error; inconclusive below three of them."""
    counted = flags[runs["outcome"] != "failed"]
    if counted.empty:
        return check(claim, None, runs=0)
    one = in_every(claim, counted)
    return replace(one, verdict="inconclusive") if len(counted) < _RUNS and one.verdict == "holds" else one


@artefact("fixup/table-3", basis="training", checks=_checks)
def translation(context: Context, *, texts: Mapping[str, Effort], methods: tuple[str, ...]) -> Evidence:
    """BLEU on the test set with layer normalization and with Fixup: Fixup matches it."""
    axes = {"method": {method: {"scheme": method} for method in methods}}
    by_text = {
        name: carry_out(
            context,
            effort.sweep(context, f"fixup/table-3 on {name}", axes),
            metrics=("bleu",),
            reduction=effort.reduction(context),
        )
        for name, effort in texts.items()
    }
    first = next(iter(by_text))
    return evidence_of(
        by_text,
        pd.concat([_by_method(name, runs) for name, runs in by_text.items()], ignore_index=True),
        lambda: _draw(first, by_text[first]),
        on=("data", "method"),
        remarks=_remarks(by_text),
    )


def _by_method(name: str, runs: Runs) -> pd.DataFrame:
    optima = runs.optima("bleu")
    numbers = optima[["mean", "deviation"]].astype(float).rename(columns={"mean": "bleu"})
    labels = {"data": name, "method": [PRINTED.get((name, method), method) for method in optima["method"]]}
    counts = optima[["n", "rate", "trainable", "diverged", "chance", "failed"]]
    return pd.DataFrame(labels).join(numbers).join(counts)


def _draw(name: str, runs: Runs) -> Axes:
    scored = len(runs.epochs) > 0 and runs.epochs["validation_bleu"].notna().sum() > len(runs.table)
    column, up = ("validation_bleu", "BLEU") if scored else ("validation_loss", "loss per token (nats)")
    return lines(
        runs.epochs[runs.epochs[column].notna()],
        x="epoch",
        y=column,
        by="method",
        each="hash",
        inks={one: scheme_ink("batch_norm" if one == "layer_norm" else one) for one in runs.labels("method")},
        title=f"Translation of {name.replace('_', ' ')}",
        x_label="epoch; thick lines are means over replicates",
        y_label=f"{up} of the validation set",
    )


def _remarks(by_text: Mapping[str, Runs]) -> tuple[str, ...]:
    runs = next(iter(by_text.values()))
    remarks = [
        "The rows of other papers with normalization are published only. Fixup replaces the norms by the recipe of "
        "fixup/transformer. BLEU is of the beam search, by sacrebleu."
    ]
    if not {row["data"] for row in published_as("fixup/table-3").rows} & set(by_text):
        remarks.append(f"Not the paper's setup: {runs.reduction}")
    if runs.sweeps[0].replicates == 1:
        remarks.append("A single run of each: its error is not known, so that BLEU cannot be compared.")
    return tuple(remarks)
