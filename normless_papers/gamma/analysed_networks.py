"""Networks that meet the assumptions of Kim et al.'s variance analysis, and the stream of trained ones (figure 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from normless.models import build_model
from normless.probes import probe
from normless.residual import ResidualMap, residual_map
from normless_lab.data import load_data
from normless_lab.plots import PLOTS
from normless_lab.sweeps import RateGrid, Sweep, trained_threshold
from normless_lab.train import trained_network
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import DataName, NetworkName, Seeds
from normless_papers.claims import Claim, Estimate, in_every, over_draws
from normless_papers.experiments.effort import TrainingSweeps
from normless_papers.experiments.runs import Runs
from normless_papers.gamma.pretrained import IMAGENET, TORCHVISION, pretrained
from normless_papers.networks.seeded_inputs import MeasuredBatch, seeded

LOW, HIGH = 0.3, 1.5
# Equations of blocks that reset the stream; how many block names fit below a plot.
_RESETS, _NAMES = (15, 17), 18

_MEASURED = ("quantity", "block", "draw", "measured", "by_formula", "ratio")

ASSUMPTIONS = (
    "β = 0, He's initialization by fan-in; circular padding, so that borders add no zeros; γ "
    f"uniform between {LOW:g} and {HIGH:g} unless stated otherwise; batch statistics"
)


def analysed_network(model: str, batch: MeasuredBatch) -> tuple[nn.Module, ResidualMap]:
    """Build a network in training mode with He's weights by fan-in, circular padding and random γ, and its map."""
    network = batch.network(model)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.padding_mode = "circular"
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
    structure = residual_map(network, batch.inputs)
    for path in structure.norms:
        nn.init.uniform_(_gamma_of(network, structure, path), LOW, HIGH)
    return network.train(), structure


def over_drawn_networks(
    context: Context,
    model: str,
    batch: MeasuredBatch,
    draws: int,
    measure: Callable[[nn.Module, ResidualMap], Sequence[pd.DataFrame]],
) -> list[pd.DataFrame]:
    """Measure draws of `analysed_network`; return each table of `measure` for all draws, with the column `draw`."""
    tables = []
    for draw in range(draws):
        with seeded(context.seed + draw):
            tables.append([table.assign(draw=draw) for table in measure(*analysed_network(model, batch))])
    return [pd.concat(drawn, ignore_index=True) for drawn in zip(*tables, strict=True)]


def stream_of(network: nn.Module, structure: ResidualMap, inputs: Tensor) -> pd.DataFrame:
    """Return the table of the probe `stream`."""
    return probe(network, inputs, ["stream"], residual_map=structure).stream


def _gamma_of(network: nn.Module, structure: ResidualMap, path: str) -> nn.Parameter:
    name = structure.by_path[path].gamma
    assert name is not None
    return network.get_parameter(name)


def gammas_of(network: nn.Module, structure: ResidualMap, role: str) -> list[nn.Parameter]:
    """Return the γ of all norms of a role, in execution order."""
    return [_gamma_of(network, structure, path) for path, known in structure.norms.items() if known == role]


def set_gammas(gammas: Iterable[nn.Parameter], values: Iterable[float]) -> None:
    """Set each γ to one value for all of its channels."""
    for gamma, value in zip(gammas, values, strict=True):
        nn.init.constant_(gamma, value)


def beside_formula(
    quantity: str, rows: pd.DataFrame, measured: pd.Series, by_formula: pd.Series, *more: str
) -> pd.DataFrame:
    """Tabulate measured numbers and a formula's, with the `block` and `draw` of their rows and more columns."""
    table = rows[["name", "draw", *more]].rename(columns={"name": "block"})
    table.insert(0, "quantity", quantity)
    return table.assign(measured=measured, by_formula=by_formula, ratio=measured / by_formula)


def averaged(rows: pd.DataFrame) -> pd.DataFrame:
    """Average rows of `beside_formula` over draws, with the sample standard deviation of the ratio."""
    keys = ["quantity", "block", *(name for name in rows.columns if name not in _MEASURED)]
    groups = rows.groupby(keys, sort=False, dropna=False)
    table = groups[["measured", "by_formula", "ratio"]].mean()
    return table.assign(deviation=groups["ratio"].std(), n=groups.size()).reset_index()


def mean_ratio(rows: pd.DataFrame, quantity: str) -> Estimate:
    """Estimate over draws the ratio of measured to predicted, averaged over the blocks."""
    return over_draws(rows[rows["quantity"] == quantity].groupby("draw")["ratio"].mean())


def largest_change(values: pd.Series, reference: pd.Series | float = 1.0) -> float:
    """Return the largest |values / reference - 1|."""
    return float((values / reference - 1).abs().max())


def analysis(
    context: Context,
    batch: MeasuredBatch,
    rows: pd.DataFrame,
    facts: Mapping[str, Any],
    blocks: pd.DataFrame,
    **setup: Any,
) -> Evidence:
    """Return rows of `beside_formula` as evidence, with the probe `stream` of all draws; `setup` has the network."""
    draws = int(blocks["draw"].nunique())
    seeds = f"{context.seed} to {context.seed + draws - 1}"
    shared = {"assumptions": ASSUMPTIONS, "inputs": batch.provenance, "draws": draws, "seeds": seeds}
    first = blocks[blocks["draw"] == 0]
    return Evidence(averaged(rows), facts, setup | shared, draw=lambda: draw_stream(first))


def draw_stream(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw Kim et al.'s figure 5: second moments after blocks, by γ and by all weights; thin lines are resets."""
    resets = table[table["equation"].isin(_RESETS)]
    named = table if len(table) <= _NAMES else resets
    title = "The stream by γ"
    ticks = dict(zip(named["block"], named["name"], strict=True))
    axes = PLOTS["stream"](table, ax, title=title, x_marks=list(resets["block"]), x_ticks=ticks, x_label="")
    axes.tick_params(axis="x", labelrotation=45)
    return axes


def _figure_5_checks(facts: tuple[Sequence[pd.DataFrame], float, float]) -> list[Claim]:
    """Check the tables of `_by_stage` of each network, given their lowest accuracy on the images and that of chance.

    "The variance of each feature map" is that of a channel, as Var[x_l,i] of equations 10 and 11 that it should show,
    averaged over the channels of a layer. Undecided unless each network has at least half of the possible gain over
    chance.
    """
    tables, least_accuracy, chance = facts
    later = [stage for stage in sorted(tables[0]["stage"].unique()) if stage > 2]
    claims: dict[str, Callable[[pd.DataFrame], bool]] = {
        "The variance falls from block 1-0 to 1-1.": lambda table: _falls(table, 1, first=0, last=1),
        "At 2-0 it is reset to a larger value than at the end of stage 1.": lambda table: _jumps(table, 2),
        "From 2-1 on it decreases to the end of stage 2.": lambda table: _falls(table, 2),
        "Later stages also start with a larger value than the previous stage ends with.": lambda table: all(
            _jumps(table, stage) for stage in later
        ),
        "There, too, it decreases from the second block on.": lambda table: all(
            _falls(table, stage) for stage in later
        ),
    }
    checks = [in_every(claim, map(holds, tables), least_accuracy=least_accuracy) for claim, holds in claims.items()]
    if least_accuracy >= trained_threshold(1.0, chance):
        return checks
    return [replace(check, verdict="inconclusive") for check in checks]


def _networks(
    context: Context, *, model: str, data: str, replicates: int, training: dict[str, Any] | None, **_: Any
) -> dict[str, TrainingSweeps]:
    """Declare the networks, unless they come with weights."""
    if training is None or context.weights is not None:
        return {}
    own = {"model": model, "data": context.data_or(data), "data_root": context.data_root, **training}
    sweep = Sweep(
        "gamma/figure-5",
        {name: value for name, value in own.items() if name != "rate"},
        {},
        RateGrid((training["rate"],), None),
        replicates,
        replicates,
        context.seed,
        keep_weights=True,
    )
    return {"networks": TrainingSweeps((sweep,))}


@artefact("gamma/figure-5", basis="measurement", checks=_figure_5_checks, trains=_networks)
def variance_of_feature_maps(
    context: Context,
    runs: Mapping[str, Runs],
    *,
    model: NetworkName[str],
    data: DataName[str],
    examples: Seeds[int],
    replicates: Seeds[int],
    training: dict[str, Any] | None,
) -> Evidence:
    name = context.data_or(data)
    images = load_data(name, root=context.data_root)
    batch = next(iter(images.test_batches(min(examples, images.test_size))))
    configs, networks = [], []
    for own in runs.values():
        assert own.laboratory is not None
        configs = [point.config for point in own.sweeps[0].points()]
        networks = [trained_network(folder) for folder in own.laboratory.weights(configs)]
    if context.weights is not None:
        model, given = pretrained(context.weights, IMAGENET)
        networks = [given]
    networks = networks or [build_model(model)]
    # Pretrained weights are not evaluated.
    with torch.no_grad():
        right = [network.eval()(batch.inputs).argmax(1) == batch.targets for network in networks if configs]
    accuracies = [float(correct.double().mean()) for correct in right]
    tables = [probe(network, batch.inputs, ["stream"]).stream for network in networks]
    streams = [_by_stage(table) for table in tables]
    chance = float(torch.bincount(batch.targets).max()) / len(batch.targets)
    weights = (
        f"{len(configs)} networks trained here" if configs else context.weights or "ImageNet's, from torchvision"
    )
    return Evidence(
        measured=pd.concat([table.assign(network=number) for number, table in enumerate(streams)], ignore_index=True),
        facts=(streams, min(accuracies, default=1.0), chance),
        setup={
            "network": model,
            "weights": weights,
            **({"training": configs[0].to_dict()} if configs else {}),
            "accuracies on the images": [round(accuracy, 3) for accuracy in accuracies],
            "inputs": f"{len(batch.inputs)} test images of {images.provenance}; batch statistics",
        },
        draw=lambda: draw_stream(tables[0]),
        reduction=_figure_5_reduction(context, name, trained=bool(configs), own_data=context.keeps(data)),
    )


def _figure_5_reduction(context: Context, data: str, *, trained: bool, own_data: bool) -> str:
    if context.weights not in (None, TORCHVISION):
        return f"the weights of {context.weights}, on {data}; whether they are ImageNet's is not known."
    return f"trained here on {data}, not on ImageNet." if trained or not own_data else ""


def _by_stage(table: pd.DataFrame) -> pd.DataFrame:
    """Tabulate by block: `block`, `stage`, `index` in the stage from 0, the measured variance of a channel on average
    and of all channels together (`pooled_variance`), and predictions by γ.
    """
    stage = (table["equation"] == _RESETS[0]).cumsum()
    index = table.groupby(stage).cumcount()
    names = {
        "stream_channel_variance": "variance",
        "stream_variance": "pooled_variance",
        "stream_second_moment": "second_moment",
        "predicted_stream_second_moment": "second_moment_by_gamma",
        "gamma_last": "gamma_last",
        "gamma_down": "gamma_down",
    }
    block = stage.astype(str) + "-" + index.astype(str)
    columns = table[list(names)].rename(columns=names)
    return pd.concat([pd.DataFrame({"block": block, "stage": stage, "index": index}), columns], axis=1)


def _jumps(table: pd.DataFrame, stage: int) -> bool:
    """Whether a stage's first block has a larger variance than the block before it."""
    before, here = (table[table["stage"] == number]["variance"] for number in (stage - 1, stage))
    return bool(here.iloc[0] > before.iloc[-1])


def _falls(table: pd.DataFrame, stage: int, first: int = 1, last: int | None = None) -> bool:
    """Whether the variance decreases at every step from one block of a stage to another; to the end by default."""
    values = table[table["stage"] == stage].set_index("index")["variance"].loc[first:last]
    return bool((values.diff().dropna() < 0).all())
