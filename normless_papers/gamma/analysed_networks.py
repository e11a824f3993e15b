"""Networks as the variance analysis of Kim et al. assumes them, with γ at drawn or chosen sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import nn

from normless.plots import PLOTS
from normless.probes import probe
from normless.residual import ResidualMap, residual_map
from normless_papers.artefact import Context, Evidence
from normless_papers.claims import Estimate, over_draws
from normless_papers.seeded_inputs import MeasuredBatch, seeded

LOW, HIGH = 0.3, 1.5
# Equations of blocks that reset the stream, and how many names fit below a plot.
_RESETS, _NAMES = (15, 17), 18

_MEASURED = ("quantity", "block", "draw", "measured", "by_formula", "ratio")

ASSUMPTIONS = (
    "β = 0, weights from He's initialization by fan-in; convolutions wrap around, so that borders add no zeros; γ "
    f"uniform between {LOW:g} and {HIGH:g} unless it says otherwise; batch statistics"
)


def analysed_network(model: str, batch: MeasuredBatch) -> tuple[nn.Module, ResidualMap]:
    """A network in training mode, with He's weights by fan-in, circular padding and every γ drawn, and its map."""
    network = batch.network(model)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.padding_mode = "circular"
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
    found = residual_map(network, batch.inputs)
    for path in found.norms:
        nn.init.uniform_(gamma_of(network, found, path), LOW, HIGH)
    return network.train(), found


def drawn_networks(
    context: Context, model: str, batch: MeasuredBatch, draws: int
) -> Iterator[tuple[int, nn.Module, ResidualMap]]:
    """Number, network and map of each draw of `analysed_network`, seeded by its number in the body too."""
    for draw in range(draws):
        with seeded(context.seed + draw):
            yield draw, *analysed_network(model, batch)


def measured_moments(network: nn.Module, batch: MeasuredBatch, found: ResidualMap, draw: int) -> pd.DataFrame:
    """The table of the probe `stream`, with the number of the draw."""
    return probe(network, batch.inputs, ["stream"], residual_map=found).stream.assign(draw=draw)


def gamma_of(network: nn.Module, found: ResidualMap, path: str) -> nn.Parameter:
    """The γ of a norm."""
    name = found.by_path[path].gamma
    assert name is not None
    return network.get_parameter(name)


def gammas_of(network: nn.Module, found: ResidualMap, role: str) -> list[nn.Parameter]:
    """The γ of all norms of a role, in execution order."""
    return [gamma_of(network, found, path) for path, its_role in found.norms.items() if its_role == role]


def set_gammas(gammas: Iterable[nn.Parameter], values: Iterable[float]) -> None:
    """Give every γ one value for all of its channels; as many values as γ."""
    for gamma, value in zip(gammas, values, strict=True):
        nn.init.constant_(gamma, value)


@torch.no_grad()
def multiply(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Multiply parameters in place."""
    for parameter in parameters:
        parameter.mul_(factor)


def beside_formula(
    quantity: str, rows: pd.DataFrame, measured: pd.Series, by_formula: pd.Series, *more: str
) -> pd.DataFrame:
    """Measured numbers and those of a formula, with the `block` and `draw` of their rows and more columns."""
    table = rows[["name", "draw", *more]].rename(columns={"name": "block"})
    table.insert(0, "quantity", quantity)
    return table.assign(measured=measured, by_formula=by_formula, ratio=measured / by_formula)


def averaged(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean over draws of what `beside_formula` gives, with the sample standard deviation of the ratio."""
    keys = ["quantity", "block", *(name for name in rows.columns if name not in _MEASURED)]
    groups = rows.groupby(keys, sort=False, dropna=False)
    table = groups[["measured", "by_formula", "ratio"]].mean()
    return table.assign(deviation=groups["ratio"].std(), n=groups.size()).reset_index()


def mean_ratio(rows: pd.DataFrame, quantity: str) -> Estimate:
    """Measured over the formula's, the mean over the blocks, over draws."""
    return over_draws(rows[rows["quantity"] == quantity].groupby("draw")["ratio"].mean())


def largest_change(one: pd.Series, other: pd.Series | float = 1.0) -> float:
    """The largest |one / other - 1|."""
    return float((one / other - 1).abs().max())


def analysis(
    context: Context,
    batch: MeasuredBatch,
    rows: pd.DataFrame,
    facts: Mapping[str, Any],
    streams: Sequence[pd.DataFrame],
    **setup: Any,
) -> Evidence:
    """The rows of `beside_formula` as evidence, with the probe `stream` of every draw; `setup` names the network."""
    seeds = f"{context.seed} to {context.seed + len(streams) - 1}"
    shared = {"assumptions": ASSUMPTIONS, "inputs": batch.provenance, "draws": len(streams), "seeds": seeds}
    return Evidence(averaged(rows), facts, setup | shared, ("quantity",), lambda: draw_stream(streams[0]))


def draw_stream(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Figure 5 of Kim et al.: the second moment after every block, by γ and by all weights; thin lines are resets."""
    resets = table[table["equation"].isin(_RESETS)]
    named = table if len(table) <= _NAMES else resets
    title = "The stream by γ"
    ticks = dict(zip(named["block"], named["name"], strict=True))
    axes = PLOTS["stream"](table, ax, title=title, x_marks=list(resets["block"]), x_ticks=ticks, x_label="")
    axes.tick_params(axis="x", labelrotation=45)
    return axes
