"""Table 3: machine translation by a Transformer without normalization, beside the one with it (section 4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.data.translation_sources import TRANSLATION_SOURCES
from normless.lab.laboratory import SweepResult
from normless.lab.rates import RateGrid
from normless.lab.sweep import Sweep
from normless.papers.artefact import Context, artefact
from normless.papers.evidence import Evidence
from normless.papers.finals import failures, setup_of
from normless.papers.fixup.effort import DECAY_POLICY
from normless.papers.published import published_as
from normless.papers.texts import text_or
from normless.papers.verdict import Check, Estimate, check, larger
from normless.report.epochs import number_against_epoch
from normless.report.palette import Ink, scheme_ink

SCHEMES = MappingProxyType({"layer_norm": "layer_norm", "fixup": "fixup", "skipinit": "skipinit"})
# What a difference of BLEU is called a match, where the paper's own differ by 0.3 and 0.
MATCH = 1.0


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


@artefact("fixup/table-3", basis="training")
def translation(context: Context, *, effort: Effort) -> Evidence:
    """BLEU on the test set with layer normalization and with Fixup: Fixup matches it."""
    results = {
        name: context.lab.run(translation_sweep(context, effort, name), metrics=("bleu",)) for name in effort.texts
    }
    tables = [_by_method(name, effort.texts[name], result) for name, result in results.items()]
    table = pd.concat(tables, ignore_index=True)
    checks = [one for name in effort.texts for one in _checks(table, name, effort)]
    reduced = {"reduced": effort.reduced} if effort.reduced else {}
    return Evidence(
        measured=table.drop(columns="scheme"),
        checks=tuple(checks),
        setup={name: setup_of(context.lab, result) for name, result in results.items()} | reduced,
        on=("data", "method"),
        draw=lambda: _draw(*next(iter(results.items()))),
        remarks=_remarks(effort, results),
    )


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


def _checks(table: pd.DataFrame, name: str, effort: Effort) -> list[Check]:
    rows = {str(row["scheme"]): row for row in table[table["data"] == name].to_dict("records")}
    norm, fixup = rows["layer_norm"], rows["fixup"]
    estimates = {
        method: Estimate(row["bleu"], row["deviation"], max(1, int(row["n"]))) for method, row in rows.items()
    }
    trained = bool(norm["trainable"] and fixup["trainable"])
    match = larger(
        f"On {name} Fixup's BLEU is at least that of layer normalization less {MATCH:g}.",
        estimates["fixup"],
        estimates["layer_norm"],
        by=-MATCH,
    )
    failed = sum(row["failed"] for row in rows.values())
    return [
        match if trained else Check(match.claim, "inconclusive", match.numbers),
        check(
            f"On {name} Fixup is as stable as layer normalization: it diverges no more often.",
            None if failed else fixup["diverged"] <= norm["diverged"],
            fixup_diverged=fixup["diverged"],
            layer_norm_diverged=norm["diverged"],
            failed=failed,
        ),
    ]


def _draw(name: str, result: SweepResult) -> Axes:
    scored = len(result.epochs) > 0 and result.epochs["validation_bleu"].notna().sum() > len(result.runs)
    column, up = ("validation_bleu", "BLEU") if scored else ("validation_loss", "loss per token (nats)")
    return number_against_epoch(
        result.epochs,
        series="method",
        column=column,
        inks=_inks(list(result.sweep.axes["method"])),
        title=f"Translation of {name.replace('_', ' ')}",
        up=f"{up} of the validation set",
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
