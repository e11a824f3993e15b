"""The batch: a class that dominates the gradient of the logits, statistics over too few examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, log, nan, sqrt

import pandas as pd
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.diagnosis.examination import Check, Examination
from normless.probes import Watcher, channel_axis
from normless.residual import Layer

CLASSES, STATISTICS = "classes", "batch statistics"
# One class predicted for nine examples in ten, the target of half of them at most, at twice the loss of guessing.
PREDICTED, TRUE, TIMES_GUESSING = 0.9, 0.5, 2.0
# From 8 examples on the noise of a statistic is below one half; with fewer, accuracy drops (De & Smith, figure 7).
ENOUGH = 8


@dataclass
class BatchNormSizes(Watcher):
    """The number of values, and of examples, that each batch norm's statistics are computed from."""

    rows: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)

    def wants(self, layer: Layer) -> bool:
        """All norms."""
        return layer.kind == "norm"

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Count the values of a batch norm."""
        if isinstance(module, _BatchNorm):
            examples = min(getattr(module, "ghost_size", len(x)), len(x))
            self.rows[layer.path] = examples, examples * x.numel() // len(x) // x.shape[channel_axis(module, x)]

    def table(self) -> pd.DataFrame:
        """A row per batch norm: its path as index, `examples` and `values`."""
        return pd.DataFrame.from_dict(self.rows, orient="index", columns=["examples", "values"])


def check_classes(e: Examination) -> Check:
    """Look for a class that is predicted for most examples and dominates the gradient of the logits."""
    table, loss = e.measured.logits, e.measured.loss
    if len(table) < 2 or not table["target_share"].notna().all():
        return Check(CLASSES, "the targets are not indices of several classes", asked=False)
    guessing = log(len(table))
    favoured = table[table["favoured"]].iloc[0]
    index = int(favoured["class"])
    predicted, true = float(favoured["predicted_share"]), float(favoured["target_share"])
    summary = (
        f"loss {loss:.3g}, that of guessing among {len(table)} is {guessing:.3g}; class "
        f"{index} is predicted for {predicted:.0%} of the examples"
    )
    if not (predicted >= PREDICTED and true <= TRUE and loss > TIMES_GUESSING * guessing):
        return Check(CLASSES, summary)
    energy = (table["bias_gradient"] ** 2).sum()
    share = float(favoured["bias_gradient"] ** 2 / energy) if energy else nan
    evidence = {
        "class": index,
        "predicted_share": predicted,
        "target_share": true,
        "share_of_squared_logit_gradient": share,
        "agreement_of_its_gradients": float(favoured["agreement"]),
        "loss": loss,
        "loss_of_guessing": guessing,
    }
    severity, where = min(0.7, 0.4 + (loss - guessing) / (10 * guessing)), [*filter(None, [e.map.classifier])]
    finding = e.finding("dominant_class", severity, where, evidence)
    return Check(CLASSES, summary, (finding,))


def check_statistics(e: Examination) -> Check:
    """Count the examples that the statistics of each batch norm are computed from."""
    sizes = e.measured.BatchNormSizes
    if sizes.empty:
        return Check(STATISTICS, "no batch norm in training mode", asked=False)
    examples, few = int(sizes["examples"].min()), sizes[sizes["examples"] < ENOUGH]
    summary = f"{len(sizes)} batch norms, {examples} examples or more for each statistic"
    if few.empty:
        return Check(STATISTICS, summary)
    evidence: dict[str, float | int | str] = {
        "examples": examples,
        "norms": len(few),
        "relative_deviation_of_variance": sqrt(2 / (examples - 1)) if examples > 1 else inf,
        "values_in_smallest": int(few["values"].min()),
        "smallest": str(few["values"].idxmin()),
    }
    severity, words = 0.85 if examples == 1 else 0.7 - 0.05 * examples, "examples" if examples > 1 else "example"
    finding = e.finding("small_batch", severity, list(few.index), evidence, example_or_examples=words)
    return Check(STATISTICS, summary, (finding,))
