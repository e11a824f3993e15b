"""Table 3: machine translation by a Transformer without normalization, beside the one with it (section 4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.data import TRANSLATION_SOURCES
from normless.plots import Ink, lines, scheme_ink
from normless.sweeps import RateGrid, Sweep, SweepResult
from normless_papers.artefact import Context, artefact
from normless_papers.estimates import in_every
from normless_papers.evidence import Evidence
from normless_papers.fixup.effort import DECAY_POLICY, with_curves
from normless_papers.published import published_as
from normless_papers.run_summary import chosen, estimate, failures, setup_of
from normless_papers.texts import text_or
from normless_papers.trained import runs_train
from normless_papers.verdict import Check, at_scale, check, larger

SCHEMES = MappingProxyType({"layer_norm": "layer_norm", "fixup": "fixup", "skipinit": "skipinit"})
# What a difference of BLEU is called a match, where the paper's own differ by 0.3 and 0.
MATCH = 1.0
# Mean training accuracies so many points apart are as fast; and how many runs it takes to call a method stable.
_AS_FAST, _RUNS = 5.0, 3


@dataclass(frozen=True)
class Text:
    """A parallel text, and how a Transformer is trained on it.

    Attributes:
        data: as text.
        network: arguments of normless:transformer.
        settings: of every run, others than network and scheme.
        rate: the learning rate.
        folder: below the folder of the data sets; the very folder if empty.
        names: what the table calls a method on this text, where that is not its own name.
    """

    data: str
    network: str
    settings: Mapping[str, Any]
    rate: float
    folder: str = ""
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Effort:
    """How much of table 3 is carried out.

    Attributes:
        texts: by the table's names.
        methods: keys of `SCHEMES`.
        replicates: runs that are averaged.
        reduced: what is smaller than in the paper, in words; empty if nothing is.
    """

    texts: Mapping[str, Text]
    methods: tuple[str, ...] = ("layer_norm", "fixup")
    replicates: int = 1
    reduced: str = ""


@dataclass(frozen=True)
class Translated:
    """The runs on one text.

    Attributes:
        name: what the table calls the text.
        runs: as in `normless_papers.fixup.effort.with_curves`, with `bleu`.
        reduction: what is less than the paper's training; empty if nothing is.
    """

    name: str
    runs: pd.DataFrame
    reduction: str


def _checks(found: Sequence[Translated]) -> list[Check]:
    return [one for text in found for one in _checks_of(text)]


def _checks_of(text: Translated) -> list[Check]:
    norm, fixup = (chosen(text.runs, method=name) for name in ("layer_norm", "fixup"))
    match = larger(
        f"On {text.name} Fixup's BLEU is at least that of layer normalization less {MATCH:g}.",
        estimate(fixup, "bleu"),
        estimate(norm, "bleu"),
        by=-MATCH,
    )
    return [
        runs_train(f"On {text.name} Fixup trains at the rate of layer normalization.", fixup, norm),
        larger(
            f"On {text.name} it is as fast: its accuracy on training tokens, the mean over epochs, is at most "
            f"{_AS_FAST:g} points below layer normalization's.",
            estimate(fixup, "curve"),
            estimate(norm, "curve"),
            by=-_AS_FAST,
        ),
        stable(
            f"On {text.name} training by Fixup is stable: no run diverges.", fixup, fixup["outcome"] != "diverged"
        ),
        at_scale(match, text.reduction),
    ]


def stable(claim: str, runs: pd.DataFrame, flags: pd.Series) -> Check:
    """That something is so of every run that did not fail with an error; fewer than three are too few to hold.

    Args:
        claim: a sentence.
        runs: a row per run.
        flags: whether it is so, by row.
    """
    kept = flags[runs["outcome"] != "failed"]
    if kept.empty:
        return check(claim, None, runs=0)
    one = in_every(claim, kept)
    return replace(one, verdict="inconclusive") if len(kept) < _RUNS and one.verdict == "holds" else one


@artefact("fixup/table-3", basis="training", checks=_checks)
def translation(context: Context, *, effort: Effort) -> Evidence:
    """BLEU on the test set with layer normalization and with Fixup: Fixup matches it."""
    results = {
        name: context.lab.run(translation_sweep(context, effort, name), metrics=("bleu",)) for name in effort.texts
    }
    tables = [_by_method(name, effort.texts[name], result) for name, result in results.items()]
    reduction = _reduction(context, effort)
    facts = tuple(Translated(name, with_curves(result), reduction) for name, result in results.items())
    reduced = {"reduced": effort.reduced} if effort.reduced else {}
    return Evidence(
        measured=pd.concat(tables, ignore_index=True).drop(columns="scheme"),
        facts=facts,
        setup={name: setup_of(context.lab, result) for name, result in results.items()} | reduced,
        on=("data", "method"),
        draw=lambda: _draw(*next(iter(results.items()))),
        remarks=_remarks(effort, results),
        reduction=reduction,
    )


def _reduction(context: Context, effort: Effort) -> str:
    """What is less than, or other than, the paper's, as a sentence; empty if nothing is."""
    if effort.reduced:
        return f"{effort.reduced}."
    other = [
        text.data for text in effort.texts.values() if text_or(context, text.data, TRANSLATION_SOURCES) != text.data
    ]
    return f"{context.data} stands in the place of {', '.join(other)}." if other else ""


def translation_sweep(context: Context, effort: Effort, name: str) -> Sweep:
    """The Transformer on one text by each method; axis `method`."""
    text = effort.texts[name]
    root = context.data_root
    if text.folder:
        root = f"{root or '.'}/{text.folder}"
    return Sweep(
        name=f"fixup/table-3 on {name}",
        run="train-translation",
        base={
            "model": f"normless:transformer({text.network})",
            "data": text_or(context, text.data, TRANSLATION_SOURCES),
            "data_root": root,
            # fairseq's Adam decays every parameter, where it decays at all.
            "decay_policy": DECAY_POLICY,
            **text.settings,
        },
        axes={"method": {method: {"scheme": SCHEMES[method]} for method in effort.methods}},
        rates=RateGrid((text.rate,), None),
        replicates=effort.replicates,
        best=effort.replicates,
        seed=context.seed,
    )


def _by_method(name: str, text: Text, result: SweepResult) -> pd.DataFrame:
    optima = result.optima("bleu")
    return pd.DataFrame(
        {
            "data": name,
            "method": [text.names.get(method, method) for method in optima["method"]],
            "scheme": optima["method"],
            "bleu": optima["mean"].astype(float),
            "deviation": optima["deviation"].astype(float),
            **{column: optima[column] for column in ("n", "rate", "trainable", "diverged", "chance", "failed")},
        }
    )


def _draw(name: str, result: SweepResult) -> Axes:
    scored = len(result.epochs) > 0 and result.epochs["validation_bleu"].notna().sum() > len(result.runs)
    column, up = ("validation_bleu", "BLEU") if scored else ("validation_loss", "loss per token (nats)")
    return lines(
        result.epochs[result.epochs[column].notna()],
        x="epoch",
        y=column,
        by="method",
        each="hash",
        inks=_inks(list(result.sweep.axes["method"])),
        title=f"Translation of {name.replace('_', ' ')}",
        x_label="epoch; thick lines are means over replicates",
        y_label=f"{up} of the validation set",
    )


def _inks(methods: list[str]) -> dict[str, Ink]:
    return {one: scheme_ink("batch_norm" if one == "layer_norm" else one) for one in methods}


def _remarks(effort: Effort, results: Mapping[str, SweepResult]) -> tuple[str, ...]:
    printed = {(row["data"], row["method"]) for row in published_as("fixup/table-3").rows}
    found = [
        "The rows of other papers with normalization are published only. Fixup takes the norms away by the recipe of "
        "fixup/transformer. BLEU is of the beam search, by sacrebleu.",
        *failures(*results.values()),
    ]
    if not any(data in effort.texts for data, _ in printed):
        found.append(f"Not the paper's setup: {effort.reduced}.")
    if effort.replicates == 1:
        found.append("A single run of each: its error is not known, so that BLEU cannot be compared.")
    return tuple(found)
