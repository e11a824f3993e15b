"""Fixup for machine translation: the Transformer by the template of section 3 (section 4.3) and BLEU (table 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes
from torch import nn

from normless.models import Transformer, transformer
from normless.nn import ResidualSum
from normless.spec import parse_call
from normless_lab.plots import lines, scheme_ink
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Claim, check
from normless_papers.claims.agreement import Agreement, agreement, agreement_table, observed, worst_agreement
from normless_papers.claims.training import runs_train
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.run_claims import stable
from normless_papers.experiments.runs import Runs, chosen, evidence_of
from normless_papers.fixup.cifar import by_data
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.plots import AGREEMENT
from normless_papers.published import published_as

# Names that the table prints for methods on a text, if they differ from ours.
PRINTED = MappingProxyType({("wmt_en_de", "layer_norm"): "layer_norm (Ott et al. 2018)"})


def _on_texts(
    context: Context, *, texts: Mapping[str, Effort], methods: tuple[str, ...]
) -> dict[str, TrainingSweeps]:
    axis = {method: {"scheme": method} for method in methods}
    return by_data(context, texts, "fixup/table-3 on {}", axis, metric="bleu")


@artefact("fixup/table-3", basis="training", trains=_on_texts)
def translation(
    context: Context, by_text: Mapping[str, Runs], *, texts: Mapping[str, Effort], methods: tuple[str, ...]
) -> Evidence:
    first, runs = next(iter(by_text.items()))
    remarks = []
    if not {row["data"] for row in published_as("fixup/table-3").rows} & set(by_text):
        remarks.append(f"Not the paper's setup: {runs.reduction}")
    if runs.sweeps[0].replicates == 1:
        remarks.append("There is a single run of each method, so its error is unknown and BLEU cannot be compared.")
    return evidence_of(
        by_text,
        pd.concat([_by_method(name, own) for name, own in by_text.items()], ignore_index=True),
        lambda: _draw(first, runs),
        on=("data", "method"),
        remarks=remarks,
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
        inks={name: scheme_ink("batch_norm" if name == "layer_norm" else name) for name in runs.labels("method")},
        title=f"Translation of {name.replace('_', ' ')}",
        x_label="epoch; thick lines are means over replicates",
        y_label=f"{up} of the validation set",
    )


# m = 2 layers per branch: the value and output projections of an attention, both layers of a feed-forward branch.
WEIGHT_LAYERS = 2
ENDS = ("attention.output", "linear2")
SCALED = ("attention.value", "linear1")
KEPT = ("attention.query", "attention.key")
# Biases before query, key, value and output; before the first layer, its activation and the second layer.
BIASES_OF_ATTENTION, BIASES_OF_FEED_FORWARD = 4, 3
# Fixup and its control.
SCHEMES = ("fixup", "layer_norm")
_COUNTED = {
    "layer norms": "No layer norm is left.",
    "scalar multipliers": "Every branch ends in one scalar multiplier.",
    "scalar biases": "A scalar bias lies before every linear layer and activation of the branches, and before the "
    "classifier.",
}


def _template_checks(facts: tuple[Sequence[Agreement], pd.DataFrame, pd.DataFrame]) -> list[Claim]:
    """Check weights and branches, the numbers of norms, multipliers and biases, and the runs with their losses."""
    agreements, counts, runs = facts
    fixup, norm = (chosen(runs, scheme=name) for name in SCHEMES)
    falls = (fixup["outcome"] != "diverged") & (fixup["last_loss"] < fixup["first_loss"])
    stably = (
        "Without normalization it trains stably: no run diverges, and in each run the training loss of the last "
        "epoch is below that of the first."
    )
    return [
        *map(Agreement.check, agreements),
        *(
            check(_COUNTED[name], count == expected, count=count, by_template=expected)
            for name, count, expected in counts.itertuples(index=False, name=None)
        ),
        stable(stably, fixup, falls),
        runs_train("Without normalization it trains at the rate of layer normalization.", fixup, norm),
    ]


def _both_schemes(context: Context, *, effort: Effort) -> TrainingSweeps:
    axes = {"scheme": {name: {"scheme": name} for name in SCHEMES}}
    return TrainingSweeps((effort.sweep(context, "fixup/transformer", axes),))


@artefact("fixup/transformer", basis="formula", checks=_template_checks, trains=_both_schemes)
def template(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    options = {**parse_call(effort.model.partition(":")[2])[1], "norm": "post", "dropout": 0.0}
    layers = int(options["layers"])
    with seeded(context.seed):
        original = transformer(100, **options)
        converted = convert(original, "fixup", *original.example_inputs())
        agreements = (*_initialization(original, converted, layers), _branches(converted))
    counts, table = _counts(converted, layers), agreement_table(agreements)
    trained = _with_losses(runs)
    by_scheme = trained.assign(quantity="training by " + trained["scheme"])
    return Evidence(
        measured=pd.concat([table, counts, by_scheme], ignore_index=True),
        facts=(agreements, counts, trained),
        setup={"network": f"{effort.model}, converted by fixup", "L": 5 * layers, "m": WEIGHT_LAYERS, **runs.setup},
        draw=lambda: AGREEMENT(table),
    )


def _with_losses(runs: Runs) -> pd.DataFrame:
    """Return the runs with the training losses of the first and the last epoch."""
    losses = runs.epochs.sort_values("epoch").groupby("hash")["training_loss"].agg(["first", "last"]).astype(float)
    columns = ["scheme", "rate", "seed", "outcome", "bleu", "test_accuracy", "chance_accuracy", "steps", "error"]
    joined = runs.table.join(losses.add_suffix("_loss"), on="hash")
    return joined[[*columns, "first_loss", "last_loss"]]


def _initialization(original: Transformer, converted: Transformer, layers: int) -> Iterator[Agreement]:
    """Compare every weight with the one that the template makes of the original's."""
    factor = (5 * layers) ** (-1 / (2 * WEIGHT_LAYERS - 2))
    named = dict(original.named_parameters())
    for ends, scale, tolerance, words in (
        (ENDS, 0.0, 0.0, "The last layer of every branch is zero"),
        (SCALED, factor, 1e-6, f"The other weights of a branch are the original's times L^(-1/2) = {factor:.4f}"),
        (KEPT, 1.0, 0.0, "Queries and keys keep their initialization"),
    ):
        names = tuple(f"{end}.weight" for end in ends)
        weights = converted.named_parameters()
        pairs = [(weight, scale * named[name]) for name, weight in weights if name.endswith(names)]
        yield worst_agreement(words, pairs, tolerance)
    embeddings = (converted.embedding.weight, original.embedding.weight)
    yield agreement("The tied embedding keeps its initialization", *embeddings)


def _branches(converted: Transformer) -> Agreement:
    """Return the largest difference between any block's output and its input at initialization."""
    sums = [module for module in converted.modules() if isinstance(module, ResidualSum)]
    calls, _ = observed(converted.eval(), sums, *converted.example_inputs())
    worst = max(float((output - sides[0]).abs().max()) for sides, output in calls)
    return Agreement("Every attention and feed-forward branch outputs zero at the start", worst)


def _counts(converted: Transformer, layers: int) -> pd.DataFrame:
    """Count norms, multipliers and scalar biases, and those of the template."""
    names = [name for name, _ in converted.named_parameters()]
    branches, attentions = 5 * layers, 3 * layers
    biases = BIASES_OF_ATTENTION * attentions + BIASES_OF_FEED_FORWARD * (branches - attentions) + 1
    counts = [
        ("layer norms", sum(isinstance(module, nn.LayerNorm) for module in converted.modules()), 0),
        ("scalar multipliers", sum(name.endswith("multiplier") for name in names), branches),
        ("scalar biases", sum(name.endswith(("input_bias", "output_bias")) for name in names), biases),
    ]
    return pd.DataFrame(counts, columns=["quantity", "count", "by_template"])
