"""Section 4.3: the template of section 3 applied to a Transformer, edit by edit, and whether it trains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless import convert
from normless.data.translation_sources import TRANSLATION_SOURCES
from normless.models import Transformer, transformer
from normless.nn import ResidualSum
from normless.papers.agreement import Agreement, agreement, agreement_table, deviation
from normless.papers.artefact import Context, artefact
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.texts import text_or
from normless.papers.verdict import Check, check
from normless.report.agreement import agreement_of_quantities
from normless.training.translation.config import TranslationConfig

# Of an attention, its value and output projections; of a feed-forward branch, its two layers.
WEIGHT_LAYERS = 2
ENDS = ("attention.output", "linear2")
SCALED = ("attention.value", "linear1")
KEPT = ("attention.query", "attention.key")
# Before query, key, value and output; before the first layer, its activation and the second layer.
BIASES_OF_ATTENTION, BIASES_OF_FEED_FORWARD = 4, 3
VOCABULARY = 100


@artefact("fixup/transformer", basis="formula")
def template(context: Context, *, layers: int, width: int, training: Mapping[str, Any]) -> Evidence:
    """Norms gone, branch ends zero, branch weights × L^(-1/(2m-2)), multipliers, scalar biases; and it trains."""
    with seeded(context.seed):
        original = transformer(VOCABULARY, layers, width, 4, 2 * width, "post", 0.0)
        converted = convert(original, "fixup", *original.example_inputs())
        agreements = [*_initialization(original, converted, layers), _branches(converted)]
    counts = _counts(converted, layers)
    runs, config = _trained(context, layers, width, training)
    table = agreement_table(agreements)
    return Evidence(
        measured=pd.concat([table, counts, runs], ignore_index=True),
        checks=(*(one.check() for one in agreements), *_count_checks(counts), _training_check(runs)),
        setup={
            "network": f"{layers} + {layers} layers of width {width}, post-norm, converted by fixup",
            "L": 5 * layers,
            "m": WEIGHT_LAYERS,
            "training": config.to_dict(),
            "seed": context.seed,
        },
        draw=lambda: agreement_of_quantities(table),
        remarks=(
            "The paper prints no recipe for the Transformer. Here L counts the residual branches of both stacks, 2 "
            "for each layer of the encoder and 3 of the decoder, and m = 2. Queries and keys are not on the way "
            "through the branch and keep their initialization. The classifier is the embedding's matrix, which "
            "cannot start at zero: it keeps its standard deviation width^(-1/2).",
        ),
    )


def _initialization(original: Transformer, converted: Transformer, layers: int) -> Iterator[Agreement]:
    """Every weight against what the template makes of the original's."""
    factor = (5 * layers) ** (-1 / (2 * WEIGHT_LAYERS - 2))
    wanted = {ENDS: 0.0, SCALED: factor, KEPT: 1.0}
    words = {
        ENDS: "The last layer of every branch is zero",
        SCALED: f"The other weights of a branch are the original's times L^(-1/2) = {factor:.4f}",
        KEPT: "Queries and keys keep their initialization",
    }
    held = dict(original.named_parameters())
    for names, scale in wanted.items():
        pairs = [
            (one, scale * held[name])
            for name, one in converted.named_parameters()
            if name.removesuffix(".weight").endswith(names) and name.endswith(".weight")
        ]
        worst = max(deviation(one.detach(), other.detach()) for one, other in pairs)
        yield Agreement(words[names], worst, 1e-6 if scale not in (0.0, 1.0) else 0.0)
    yield agreement(
        "The tied embedding keeps its initialization", converted.embedding.weight, original.embedding.weight
    )


def _branches(converted: Transformer) -> Agreement:
    """What the sums add at the start: how far any block's output is from its input."""
    found: list[float] = []

    def seen(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found.append(float((output - inputs[0]).detach().abs().max()))

    handles = [one.register_forward_hook(seen) for one in converted.modules() if isinstance(one, ResidualSum)]
    with torch.no_grad():
        converted.eval()(*converted.example_inputs())
    for handle in handles:
        handle.remove()
    return Agreement("Every attention and feed-forward branch outputs zero at the start", max(found))


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
    return pd.DataFrame(
        [{"quantity": name, "count": count, "by_template": wanted} for name, (count, wanted) in counts.items()]
    )


def _count_checks(counts: pd.DataFrame) -> Iterator[Check]:
    sentences = {
        "layer norms": "No layer norm is left.",
        "scalar multipliers": "Every branch ends in one scalar multiplier.",
        "scalar biases": "A scalar bias lies before every linear layer and activation of the branches, and before "
        "the classifier.",
    }
    for row in counts.to_dict("records"):
        yield check(
            sentences[row["quantity"]],
            row["count"] == row["by_template"],
            count=row["count"],
            by_template=row["by_template"],
        )


def _trained(
    context: Context, layers: int, width: int, training: Mapping[str, Any]
) -> tuple[pd.DataFrame, TranslationConfig]:
    """The run with Fixup, and beside it that without normalization and with nothing in its place."""
    network = f"layers={layers}, width={width}, heads=4, feed_forward={2 * width}, dropout=0.0"
    settings = dict(training)
    data = text_or(context, settings.pop("data"), TRANSLATION_SOURCES)
    configs = {
        scheme: TranslationConfig(
            model=f"normless:transformer({network}, norm='post')",
            scheme=scheme,
            data=data,
            data_root=context.data_root,
            seed=context.seed,
            **settings,
        )
        for scheme in ("fixup", "none")
    }
    rows = []
    for scheme, row in zip(configs, context.lab.carry_out(list(configs.values())), strict=True):
        result = row.result or {}
        losses = [float(one["training_loss"]) for one in result.get("epochs", ())]
        rows.append(
            {
                "quantity": f"training by {scheme}",
                "outcome": row.outcome,
                "first_loss": losses[0] if losses else math.nan,
                "last_loss": losses[-1] if losses else math.nan,
                "bleu": float(result.get("test_bleu_beam", math.nan)),
                "test_accuracy": float(result.get("test_accuracy", math.nan)),
                "steps": result.get("steps"),
                "error": row.error,
            }
        )
    return pd.DataFrame(rows), configs["fixup"]


def _training_check(runs: pd.DataFrame) -> Check:
    """Of the run by Fixup: it neither diverges nor stands still."""
    row = runs[runs["quantity"] == "training by fixup"].iloc[0]
    known = row["outcome"] != "failed"
    stable = row["outcome"] != "diverged" and float(row["last_loss"]) < float(row["first_loss"])
    steps = float(row["steps"]) if known else math.nan
    return check(
        "Without normalization it trains stably: it does not diverge, and the training loss of the last epoch is "
        "below that of the first.",
        stable if known else None,
        first_loss=row["first_loss"],
        last_loss=row["last_loss"],
        steps=steps,
    )
