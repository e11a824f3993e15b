"""Figure 5: the variance behind every residual block of a trained ResNet-50."""

from __future__ import annotations

from typing import Any

import pandas as pd
from torch import Tensor, nn

from normless.data import load_data
from normless.models.spec import build_model
from normless.papers.artefact import Context, artefact
from normless.papers.evidence import Evidence
from normless.papers.gamma.trained import trained_by
from normless.papers.verdict import Check, check
from normless.probes.gammas.gamma_variance import gamma_variance_table
from normless.report.probes.stream_variance import stream_second_moment
from normless.training.config import TrainConfig

RESET = 15


@artefact("gamma/figure-5", basis="measurement")
def variance_of_feature_maps(
    context: Context, *, model: str, data: str, examples: int, training: dict[str, Any] | None
) -> Evidence:
    """The variance is set at the first block of every stage, larger than it was, and falls within the stage."""
    config, network, images, provenance = _network(context, model, data, examples, training)
    table = gamma_variance_table(network, images)
    measured = _by_stage(table)
    return Evidence(
        measured=measured,
        checks=_checks(measured),
        setup={
            "network": model,
            "weights": "ImageNet's, from torchvision" if training is None else "trained here",
            **({} if config is None else {"training": config.to_dict()}),
            "inputs": f"{len(images)} test images of {provenance}; batch statistics",
            "seed": context.seed,
        },
        draw=lambda: stream_second_moment(table),
        remarks=(
            "The paper measures weights pretrained on ImageNet, which only the paper budget downloads; a network "
            "trained here from random weights for a few epochs stands in for it otherwise. Variance is over "
            "examples, channels and positions together; blocks are named by stage and index, 1-0 the first.",
        ),
    )


def _network(
    context: Context, model: str, data: str, examples: int, training: dict[str, Any] | None
) -> tuple[TrainConfig | None, nn.Module, Tensor, str]:
    name = context.data_or(data)
    found = load_data(name, root=context.data_root)
    images = next(iter(found.test_batches(min(examples, found.test_size)))).inputs
    if training is None:
        return None, build_model(model), images, found.provenance
    config = TrainConfig(model=model, data=name, data_root=context.data_root, seed=context.seed, **training)
    return config, trained_by(context, config), images, found.provenance


def _by_stage(table: pd.DataFrame) -> pd.DataFrame:
    """The measured variance by stage and index, and what γ alone says of it."""
    stage = (table["equation"] == RESET).cumsum()
    index = table.groupby(stage).cumcount()
    return pd.DataFrame(
        {
            "block": stage.astype(str) + "-" + index.astype(str),
            "stage": stage,
            "index": index,
            "variance": table["stream_variance"],
            "second_moment": table["stream_second_moment"],
            "second_moment_by_gamma": table["predicted_stream_second_moment"],
            "gamma_last": table["gamma_last"],
            "gamma_down": table["gamma_down"],
        }
    )


def _checks(measured: pd.DataFrame) -> tuple[Check, ...]:
    """Every part of the claim: the first stage, the reset of the second, its decrease, and the later stages."""
    value = measured.set_index("block")["variance"]
    later = [stage for stage in sorted(measured["stage"].unique()) if stage > 2]
    jumps = {f"{stage}-0": value[f"{stage}-0"] / _last_of(measured, stage - 1) for stage in (2, *later)}
    falls = {stage: _falls(measured, stage) for stage in (1, 2, *later)}
    return (
        check(
            "The variance falls from block 1-0 to 1-1.",
            value["1-1"] < value["1-0"],
            at_1_0=value["1-0"],
            at_1_1=value["1-1"],
        ),
        check("At 2-0 it is set to a larger value than at the end of stage 1.", jumps["2-0"] > 1, ratio=jumps["2-0"]),
        check(
            "From 2-1 on it decreases to the end of stage 2.",
            falls[2] == 1,
            share_of_falling_steps=falls[2],
        ),
        check(
            "Later stages are alike: set to a larger value at their start, and decreasing behind their second block.",
            all(jumps[f"{stage}-0"] > 1 and falls[stage] == 1 for stage in later),
            **{f"jump_{stage}": jumps[f"{stage}-0"] for stage in later},
            **{f"share_of_falling_steps_{stage}": falls[stage] for stage in later},
        ),
    )


def _last_of(measured: pd.DataFrame, stage: int) -> float:
    return float(measured[measured["stage"] == stage]["variance"].iloc[-1])


def _falls(measured: pd.DataFrame, stage: int) -> float:
    """The share of the steps from the stage's second block on that go down."""
    steps = measured[(measured["stage"] == stage) & (measured["index"] >= 1)]["variance"].diff().dropna()
    return float((steps < 0).mean()) if len(steps) else 1.0
