"""Section 4.3: the template of section 3 applied to a Transformer, edit by edit, and whether it trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
from torch import nn

from normless.models import Transformer, transformer
from normless.nn import ResidualSum
from normless.spec import parse_call
from normless.sweeps import convert
from normless_papers.agreement import Agreement, agreement, agreement_table, observed, worst_agreement
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, check
from normless_papers.effort import Effort
from normless_papers.fixup.translation import stable
from normless_papers.plots import AGREEMENT
from normless_papers.runs import Runs, carry_out, chosen
from normless_papers.seeded_inputs import seeded
from normless_papers.trained import runs_train

# Of an attention, its value and output projections; of a feed-forward branch, its two layers.
WEIGHT_LAYERS = 2
ENDS = ("attention.output", "linear2")
SCALED = ("attention.value", "linear1")
KEPT = ("attention.query", "attention.key")
# Before query, key, value and output; before the first layer, its activation and the second layer.
BIASES_OF_ATTENTION, BIASES_OF_FEED_FORWARD = 4, 3
VOCABULARY = 100
# What is trained, and what it is compared with.
SCHEMES = ("fixup", "layer_norm")
_COUNTS = ("count", "by_template")
_COUNTED = {
    "layer norms": "No layer norm is left.",
    "scalar multipliers": "Every branch ends in one scalar multiplier.",
    "scalar biases": "A scalar bias lies before every linear layer and activation of the branches, and before the "
    "classifier.",
}


@dataclass(frozen=True)
class Template:
    """The Transformer after the conversion, and its training."""

    agreements: tuple[Agreement, ...]  # of weights and branches
    counts: pd.DataFrame  # of norms, multipliers and biases: `quantity`, `count` and `by_template`
    runs: pd.DataFrame  # as `Runs.table`, with the training losses of the first and last epoch


def _checks(template: Template) -> list[Check]:
    fixup, norm = (chosen(template.runs, scheme=name) for name in SCHEMES)
    falls = (fixup["outcome"] != "diverged") & (fixup["last_loss"] < fixup["first_loss"])
    stably = (
        "Without normalization it trains stably: no run diverges, and the training loss of the last epoch is below "
        "that of the first in each."
    )
    return [
        *(one.check() for one in template.agreements),
        *(
            check(
                _COUNTED[row["quantity"]], row["count"] == row["by_template"], **{name: row[name] for name in _COUNTS}
            )
            for row in template.counts.to_dict("records")
        ),
        stable(stably, fixup, falls),
        runs_train("Without normalization it trains at the rate of layer normalization.", fixup, norm),
    ]


@artefact("fixup/transformer", basis="formula", checks=_checks)
def template(context: Context, *, effort: Effort) -> Evidence:
    """Norms gone, branch ends zero, branch weights × L^(-1/(2m-2)), multipliers, scalar biases; and it trains."""
    options = {**parse_call(effort.model.partition(":")[2])[1], "norm": "post", "dropout": 0.0}
    layers = int(options["layers"])
    with seeded(context.seed):
        original = transformer(VOCABULARY, **options)
        converted = convert(original, "fixup", *original.example_inputs())
        agreements = (*_initialization(original, converted, layers), _branches(converted))
    axes = {"scheme": {name: {"scheme": name} for name in SCHEMES}}
    runs = carry_out(context, effort.sweep(context, "fixup/transformer", axes))
    counts, table = _counts(converted, layers), agreement_table(agreements)
    trained = _with_losses(runs)
    by_scheme = trained.assign(quantity="training by " + trained["scheme"])
    return Evidence(
        measured=pd.concat([table, counts, by_scheme], ignore_index=True),
        facts=Template(agreements, counts, trained),
        setup={"network": f"{effort.model}, converted by fixup", "L": 5 * layers, "m": WEIGHT_LAYERS, **runs.setup},
        draw=lambda: AGREEMENT(table),
        remarks=(
            "The paper prints no recipe for the Transformer. Here L counts the residual branches of both stacks, 2 "
            "for each layer of the encoder and 3 of the decoder, and m = 2. Queries and keys are not on the path "
            "through the branch and keep their initialization. The classifier is the embedding's matrix, which "
            "cannot start at zero: it keeps its standard deviation width^(-1/2).",
        ),
    )


def _with_losses(runs: Runs) -> pd.DataFrame:
    """The runs with the training losses of the first and the last epoch."""
    losses = runs.epochs.sort_values("epoch").groupby("hash")["training_loss"]
    columns = ["scheme", "rate", "seed", "outcome", "bleu", "test_accuracy", "chance_accuracy", "steps", "error"]
    by_run = runs.table["hash"]
    return runs.table[columns].assign(
        first_loss=by_run.map(losses.first()).astype(float), last_loss=by_run.map(losses.last()).astype(float)
    )


def _initialization(original: Transformer, converted: Transformer, layers: int) -> Iterator[Agreement]:
    """Every weight against what the template makes of the original's."""
    factor = (5 * layers) ** (-1 / (2 * WEIGHT_LAYERS - 2))
    named = dict(original.named_parameters())
    for ends, scale, tolerance, words in (
        (ENDS, 0.0, 0.0, "The last layer of every branch is zero"),
        (SCALED, factor, 1e-6, f"The other weights of a branch are the original's times L^(-1/2) = {factor:.4f}"),
        (KEPT, 1.0, 0.0, "Queries and keys keep their initialization"),
    ):
        names = tuple(f"{end}.weight" for end in ends)
        weights = converted.named_parameters()
        pairs = [(one, scale * named[name]) for name, one in weights if name.endswith(names)]
        yield worst_agreement(words, pairs, tolerance)
    embeddings = (converted.embedding.weight, original.embedding.weight)
    yield agreement("The tied embedding keeps its initialization", *embeddings)


def _branches(converted: Transformer) -> Agreement:
    """The largest difference of any block's output from its input at the start."""
    sums = [one for one in converted.modules() if isinstance(one, ResidualSum)]
    calls, _ = observed(converted.eval(), sums, *converted.example_inputs())
    worst = max(float((output - sides[0]).abs().max()) for sides, output in calls)
    return Agreement("Every attention and feed-forward branch outputs zero at the start", worst)


def _counts(converted: Transformer, layers: int) -> pd.DataFrame:
    """Norms, multipliers and scalar biases, and how many the template has."""
    named = dict(converted.named_parameters())
    branches, attentions = 5 * layers, 3 * layers
    biases = BIASES_OF_ATTENTION * attentions + BIASES_OF_FEED_FORWARD * (branches - attentions) + 1
    counts = {
        "layer norms": (sum(isinstance(one, nn.LayerNorm) for one in converted.modules()), 0),
        "scalar multipliers": (sum(name.endswith("multiplier") for name in named), branches),
        "scalar biases": (sum(name.endswith(("input_bias", "output_bias")) for name in named), biases),
    }
    return pd.DataFrame([(name, *pair) for name, pair in counts.items()], columns=["quantity", *_COUNTS])
