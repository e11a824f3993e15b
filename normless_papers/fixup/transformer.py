"""Section 4.3: the template of section 3 applied to a Transformer, edit by edit, and whether it trains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless.data import TRANSLATION_SOURCES
from normless.models import Transformer, transformer
from normless.nn import ResidualSum
from normless.sweeps import convert
from normless.train import TranslationConfig
from normless_papers.agreement import Agreement, agreement, agreement_table, deviation
from normless_papers.artefact import Context, artefact
from normless_papers.draws import seeded
from normless_papers.evidence import Evidence
from normless_papers.fixup.effort import DECAY_POLICY
from normless_papers.fixup.translation import stable
from normless_papers.plots import AGREEMENT
from normless_papers.run_summary import chosen
from normless_papers.texts import text_or
from normless_papers.trained import runs_train
from normless_papers.verdict import Check, check

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


@dataclass(frozen=True)
class Template:
    """What became of the Transformer.

    Attributes:
        agreements: of weights and branches.
        counts: of norms, multipliers and biases, `count` beside `by_template`.
        runs: of the training, `scheme`, first and last training loss, and the columns of a table of runs.
    """

    agreements: tuple[Agreement, ...]
    counts: pd.DataFrame
    runs: pd.DataFrame


def _checks(found: Template) -> list[Check]:
    fixup, norm = (chosen(found.runs, scheme=name) for name in SCHEMES)
    falls = (fixup["outcome"] != "diverged") & (fixup["last_loss"] < fixup["first_loss"])
    return [
        *(one.check() for one in found.agreements),
        *_count_checks(found.counts),
        stable(
            "Without normalization it trains stably: no run diverges, and the training loss of the last epoch is "
            "below that of the first in each.",
            fixup,
            falls,
        ),
        runs_train("Without normalization it trains at the rate of layer normalization.", fixup, norm),
    ]


@artefact("fixup/transformer", basis="formula", checks=_checks)
def template(context: Context, *, layers: int, width: int, replicates: int, training: Mapping[str, Any]) -> Evidence:
    """Norms gone, branch ends zero, branch weights × L^(-1/(2m-2)), multipliers, scalar biases; and it trains."""
    with seeded(context.seed):
        original = transformer(VOCABULARY, layers, width, 4, 2 * width, "post", 0.0)
        converted = convert(original, "fixup", *original.example_inputs())
        agreements = (*_initialization(original, converted, layers), _branches(converted))
    configs = _configs(context, layers, width, replicates, training)
    facts = Template(agreements, _counts(converted, layers), _runs(context, configs))
    table = agreement_table(agreements)
    words = facts.runs.assign(quantity="training by " + facts.runs["scheme"])
    return Evidence(
        measured=pd.concat([table, facts.counts, words], ignore_index=True),
        facts=facts,
        setup={
            "network": f"{layers} + {layers} layers of width {width}, post-norm, converted by fixup",
            "L": 5 * layers,
            "m": WEIGHT_LAYERS,
            "training": configs[0].to_dict(),
            "replicates": replicates,
            "seed": context.seed,
        },
        draw=lambda: AGREEMENT(table),
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
    named = dict(original.named_parameters())
    for names, scale in wanted.items():
        pairs = [
            (one, scale * named[name])
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


def _configs(
    context: Context, layers: int, width: int, replicates: int, training: Mapping[str, Any]
) -> list[TranslationConfig]:
    """The runs with Fixup, and beside them those of the network with its layer norms."""
    network = f"layers={layers}, width={width}, heads=4, feed_forward={2 * width}, norm='post', dropout=0.0"
    settings = dict(training)
    data = text_or(context, settings.pop("data"), TRANSLATION_SOURCES)
    return [
        TranslationConfig(
            model=f"normless:transformer({network})",
            scheme=scheme,
            data=data,
            data_root=context.data_root,
            decay_policy=DECAY_POLICY,
            seed=context.seed + replicate,
            **settings,
        )
        for scheme in SCHEMES
        for replicate in range(replicates)
    ]


def _runs(context: Context, configs: Sequence[TranslationConfig]) -> pd.DataFrame:
    """How they ended, in percent, with the training losses of the first and the last epoch and BLEU."""
    rows = []
    for row in context.lab.carry_out(configs):
        result = row.result or {}
        losses = [float(one["training_loss"]) for one in result.get("epochs", ())]
        rows.append(
            {
                "scheme": row.config["scheme"],
                "rate": row.config["rate"],
                "seed": row.config["seed"],
                "outcome": row.outcome,
                "first_loss": losses[0] if losses else math.nan,
                "last_loss": losses[-1] if losses else math.nan,
                "bleu": float(result.get("test_bleu_beam", math.nan)),
                "test_accuracy": 100 * float(result.get("test_accuracy", math.nan)),
                "chance_accuracy": 100 * float(result.get("chance_accuracy", math.nan)),
                "steps": result.get("steps"),
                "error": row.error,
            }
        )
    return pd.DataFrame(rows)
