"""Figure 5: the variance after every residual block of a trained ResNet-50."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless.data import load_data
from normless.models import build_model
from normless.probes import probe
from normless.sweeps import trained_threshold
from normless.train import TrainConfig, trained_network
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, in_every
from normless_papers.gamma.analysed_networks import draw_stream

RESET = 15


@dataclass(frozen=True)
class TrainedStreams:
    """The variance after every block of trained networks."""

    tables: tuple[pd.DataFrame, ...]  # of each a row per block: `block`, `stage`, `index` in it from 0, `variance`
    least_accuracy: float  # of those that were trained here, on the images measured; 1 of pretrained weights
    chance: float  # of the best constant guess

    @property
    def trained(self) -> bool:
        """Whether each network has at least half of the gain over chance that there is."""
        return self.least_accuracy >= trained_threshold(1.0, self.chance)


def _figure_5_checks(streams: TrainedStreams) -> list[Check]:
    later = [stage for stage in sorted(streams.tables[0]["stage"].unique()) if stage > 2]
    claims: dict[str, Callable[[pd.DataFrame], bool]] = {
        "The variance falls from block 1-0 to 1-1.": lambda table: _falls(table, 1, first=0, last=1),
        "At 2-0 it is set to a larger value than at the end of stage 1.": lambda table: _jumps(table, 2),
        "From 2-1 on it decreases to the end of stage 2.": lambda table: _falls(table, 2),
        "Later stages start with a larger value than the stage before them ends with, too.": lambda table: all(
            _jumps(table, stage) for stage in later
        ),
        "From their second block on it decreases there, too.": lambda table: all(
            _falls(table, stage) for stage in later
        ),
    }
    checks = [
        in_every(claim, map(holds, streams.tables), least_accuracy=streams.least_accuracy)
        for claim, holds in claims.items()
    ]
    return checks if streams.trained else [replace(one, verdict="inconclusive") for one in checks]


@artefact("gamma/figure-5", basis="measurement", checks=_figure_5_checks)
def variance_of_feature_maps(
    context: Context, *, model: str, data: str, examples: int, replicates: int, training: dict[str, Any] | None
) -> Evidence:
    """The variance is set at the first block of every stage, larger than it was, and falls within the stage."""
    name = context.data_or(data)
    images = load_data(name, root=context.data_root)
    batch = next(iter(images.test_batches(min(examples, images.test_size))))
    seeds = range(context.seed, context.seed + replicates)
    shared: dict[str, Any] = {"model": model, "data": name, "data_root": context.data_root}
    configs = [] if training is None else [TrainConfig(**shared, seed=seed, **training) for seed in seeds]
    networks = [trained_network(folder) for folder in context.lab.weights(configs)] or [build_model(model)]
    accuracies = [_accuracy(network, batch.inputs, batch.targets) for network in networks] if configs else []
    tables = [probe(network, batch.inputs, ["stream"]).stream for network in networks]
    streams = [_by_stage(table) for table in tables]
    chance = float(torch.bincount(batch.targets).max()) / len(batch.targets)
    weights = f"{len(configs)} networks trained here" if configs else "ImageNet's, from torchvision"
    return Evidence(
        measured=pd.concat([table.assign(network=number) for number, table in enumerate(streams)], ignore_index=True),
        facts=TrainedStreams(tuple(streams), min(accuracies, default=1.0), chance),
        setup={
            "network": model,
            "weights": weights,
            **({"training": configs[0].to_dict()} if configs else {}),
            "accuracies on the images": [round(one, 3) for one in accuracies],
            "inputs": f"{len(batch.inputs)} test images of {images.provenance}; batch statistics",
        },
        draw=lambda: draw_stream(tables[0]),
        reduction="" if training is None and context.keeps(data) else f"trained here on {name}, not on ImageNet.",
    )


@torch.no_grad()
def _accuracy(network: nn.Module, images: Tensor, targets: Tensor) -> float:
    return float((network.eval()(images).argmax(1) == targets).double().mean())


def _by_stage(table: pd.DataFrame) -> pd.DataFrame:
    """The measured variance by stage and index, and what γ alone says of it."""
    stage = (table["equation"] == RESET).cumsum()
    index = table.groupby(stage).cumcount()
    names = {
        "stream_variance": "variance",
        "stream_second_moment": "second_moment",
        "predicted_stream_second_moment": "second_moment_by_gamma",
        "gamma_last": "gamma_last",
        "gamma_down": "gamma_down",
    }
    block = stage.astype(str) + "-" + index.astype(str)
    columns = table[list(names)].rename(columns=names)
    return pd.concat([pd.DataFrame({"block": block, "stage": stage, "index": index}), columns], axis=1)


def _jumps(table: pd.DataFrame, stage: int) -> bool:
    """Whether a stage's first block has more variance than the last one before it."""
    before, here = (table[table["stage"] == one]["variance"] for one in (stage - 1, stage))
    return bool(here.iloc[0] > before.iloc[-1])


def _falls(table: pd.DataFrame, stage: int, first: int = 1, last: int | None = None) -> bool:
    """Whether the variance decreases in every step from one block of a stage to another; to its end by default."""
    values = table[table["stage"] == stage].set_index("index")["variance"].loc[first:last]
    return bool((values.diff().dropna() < 0).all())
