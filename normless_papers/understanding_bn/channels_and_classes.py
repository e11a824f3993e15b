"""Bjorck et al.: dominating channels (figures 7 and 19, appendix K) and classes (figures 4, 20, 21, appendix L)."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from normless.probes import agreement
from normless_lab.plots import PLOTS, QUIET, SCHEME_INKS, Plot, lines, scheme_ink
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import DataName, Seeds
from normless_papers.claims import Tests, decided, in_all, lies_within
from normless_papers.plots import GRADIENT_BY_CLASS
from normless_papers.probes import ChannelContributions
from normless_papers.probes.channels import channel_gradient_spread, dominance_table
from normless_papers.probes.class_gradients import for_each_class
from normless_papers.understanding_bn.initializations import (
    INKS,
    READING_LAYERS,
    WEIGHT_52,
    Draw,
    Initializations,
    MeasuredDraws,
    class_pass_of,
    decades,
    pass_of,
)

_EARLY, _LATE = (2, 10), (95, 108)


@artefact("understanding-bn/figure-7", basis="measurement")
def channel_pairs(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)
    columns = ["variation", "effective_rank", "rank_one_share", "predicted_rank_one_share"]
    return setting.evidence(
        lambda draw: pass_of(draw)["pair_structure"][columns],
        draw=lambda: setting.side_by_side(
            lambda draw, axes, title: PAIRS(
                pass_of(draw)["pairs"], axes, ink=scheme_ink(INKS[draw.batch_norm]), title=f"{title}, layer 45"
            ),
            width=4.3,
            height=3.6,
        ),
        layer=45,
    )


@artefact("understanding-bn/figure-19", basis="measurement")
def channel_gradients(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)

    def spread(draw: Draw) -> pd.DataFrame:
        by_layer = channel_gradient_spread(pass_of(draw)["channels"]).set_index("order")
        rows = []
        for part, (first, last) in (("early", _EARLY), ("late", _LATE)):
            mean = by_layer.loc[first:last, ["mean", "standard_deviation", "decades"]].mean()
            rows.append({"layers": f"{first} to {last}", "part": part} | mean.to_dict())
        return pd.DataFrame(rows)

    return setting.evidence(
        spread,
        draw=lambda: PLOTS["channel_gradients"](setting.shown(lambda draw: pass_of(draw)["channels"])),
        early=f"layers {_EARLY[0]} to {_EARLY[1]}",
        late=f"layers {_LATE[0]} to {_LATE[1]}",
    )


@artefact("understanding-bn/dominating-channels", basis="measurement")
def dominating_channels(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)
    columns = ["order", "channels", "mean_correlation", "effective_share", "top_tenth_share"]
    return setting.evidence(
        lambda draw: dominance_table(pass_of(draw)["contributions"])[columns].rename(columns={"order": "layer"}),
        draw=lambda: ChannelContributions.plot(setting.shown(lambda draw: pass_of(draw)["contributions"])),
        layers=list(READING_LAYERS),
    )


def _sorted_by_mean(pairs: pd.DataFrame) -> pd.DataFrame:
    """Sort channels by their means, the largest first, and divide gradients by the mean over all."""
    ranks = {
        name: pairs.groupby(name)["gradient"].mean().rank(ascending=False, method="first") - 1
        for name in ("out_channel", "in_channel")
    }
    placed = {name: pairs[name].map(rank) for name, rank in ranks.items()}
    return pairs.assign(gradient=pairs["gradient"] / (pairs["gradient"].mean() or 1.0), **placed)


# Of one layer. Consistently large channels gather in a corner.
PAIRS = Plot(
    "heat_map",
    _sorted_by_mean,
    x="in_channel",
    y="out_channel",
    value="gradient",
    unit="× mean",
    size=(4.3, 3.6),
    title="Gradient by channels",
    x_label="in-channel, sorted",
    y_label="out-channel, sorted",
)


# "The one class that the network almost always guesses" (appendix L).
ALMOST_ALWAYS = 0.9
# Relative error of a sum of ten gradients in float64, in units of the parameter's largest element.
_SUM_ROUNDING = 1e-9


@artefact("understanding-bn/figure-4", basis="measurement")
def favoured_class(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)
    return setting.evidence(
        lambda draw: _favourite(pass_of(draw)["logits"], pass_of(draw)["logits_by_example"]),
        draw=lambda: setting.side_by_side(
            lambda draw, axes, title: PLOTS["logit_matrix"](
                pass_of(draw)["logits_by_example"], axes, title=f"{title}, ∂L_b/∂z_j"
            )
        ),
    )


def _favourite(by_class: pd.DataFrame, by_example: pd.DataFrame) -> pd.DataFrame:
    """Describe the class with the largest bias gradient in a row."""
    largest = by_class.sort_values("bias_gradient").iloc[-1]
    others = by_example[(by_example["class"] == largest["class"]) & ~by_example["is_target"]]["gradient"]
    row = {"class": int(largest["class"]), "predicted_share": float(largest["predicted_share"])}
    row |= {"column_mean": float(others.mean()), "column_deviation": float(others.std(ddof=0))}
    row |= {"bias_gradient": float(largest["bias_gradient"]), "agreement": agreement(by_class)}
    return pd.DataFrame([row])


def _predicted(dominant: pd.DataFrame) -> Tests:
    return {
        "The class with the largest gradients is the one that the untrained network almost always guesses, for at "
        f"least {ALMOST_ALWAYS:.0%} of the images, in every draw.": in_all(
            dominant["predicted_share"] >= ALMOST_ALWAYS, smallest_share=dominant["predicted_share"].min()
        )
    }


@artefact("understanding-bn/figure-20", basis="measurement")
def elements_of_classes(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)

    def dominance(draw: Draw) -> pd.DataFrame:
        tables = class_pass_of(draw)
        ordered = tables["sizes"].sort_values("mean_abs", ascending=False)
        dominant = ordered.iloc[0]
        row = {name: dominant[name] for name in ("class", "share", "predicted_share")}
        row |= {"next_share": ordered["share"].iloc[1]}
        elements = tables["elements"].assign(size=tables["elements"]["gradient"].abs())
        sizes = elements.pivot(index="element", columns="class", values="size")
        # How often the class has the largest gradient, among the elements with a gradient.
        leading = sizes[sizes.max(axis=1) > 0].idxmax(axis=1) == dominant["class"]
        return pd.DataFrame([row | {"leading_share": float(leading.mean())}])

    return setting.evidence(
        dominance,
        draw=lambda: draw_elements(class_pass_of(Draw(setting, False, 0))["elements"]),
        batch_norm=(False,),
        layer=52,
        parameter=WEIGHT_52,
    )


def _gradient_of_classes(facts: MeasuredDraws) -> Tests:
    rows = facts.by_draw(batch_norm=False).reset_index()
    by_draw = rows.groupby("draw")["mean_abs"]
    ratio = by_draw.max() / ((by_draw.sum() - by_draw.max()) / (by_draw.count() - 1))
    return {
        **_predicted(rows.loc[by_draw.idxmax()]),
        "The dominant class's mean |gradient| is about ten times the mean of the others, within half a decade "
        "(log₁₀ of the ratio).": lies_within(decades(ratio), 0.5, 1.5),
    }


@artefact("understanding-bn/figure-21", basis="measurement", checks=_gradient_of_classes)
def gradient_of_classes(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)
    return setting.evidence(
        lambda draw: class_pass_of(draw)["sizes"],
        draw=lambda: GRADIENT_BY_CLASS(class_pass_of(Draw(setting, False, 0))["sizes"]),
        batch_norm=(False,),
        layer=52,
        parameter=WEIGHT_52,
    )


def _class_wise_mask(facts: MeasuredDraws) -> Tests:
    return {
        f"The gradients of all classes sum to autograd's, {name} batch norm, for every parameter and draw, to "
        f"{_SUM_ROUNDING:g} of its largest element.": decided(
            bool((rows["deviation"] <= _SUM_ROUNDING).all()) if len(rows) else None,
            largest_deviation=rows["deviation"].max(),
            parameters=rows["parameters"].max(),
        )
        for name, rows in zip(("without", "with"), facts.both, strict=True)
    }


@artefact("understanding-bn/class-wise-mask", basis="formula", checks=_class_wise_mask)
def masked_gradients(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)
    return setting.evidence(
        _sums,
        draw=lambda: GRADIENT_BY_CLASS(_sums(Draw(setting, False, 0))),
        precision="float64",
    )


def _sums(draw: Draw) -> pd.DataFrame:
    """Measure each class's gradient size, its deviation from the whole gradient, and that of the sum of classes."""
    model, inputs = draw.model.double().train(), draw.inputs.double()
    names, weights = zip(*model.named_parameters(), strict=True)
    loss = nn.functional.cross_entropy(model(inputs), draw.targets)
    whole = dict(zip(names, torch.autograd.grad(loss, weights), strict=True))
    total = {name: torch.zeros_like(gradient) for name, gradient in whole.items()}
    rows = []

    def visit(index: int, predicted: float, gradients: dict[str, Tensor]) -> None:
        for name, gradient in gradients.items():
            total[name] += gradient
        sizes = torch.cat([gradient.flatten() for gradient in gradients.values()])
        rows.append({"class": index, "mean_abs": float(sizes.abs().mean()), "alone": _apart(gradients, whole)})

    for_each_class(model, inputs, draw.targets, visit)
    return pd.DataFrame(rows).assign(deviation=_apart(total, whole), parameters=len(whole))


def _apart(first: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> float:
    """Return the largest max|difference| / max|whole| over the parameters with a gradient."""
    return max(
        float((first[name] - gradient).abs().max() / gradient.abs().max())
        for name, gradient in whole.items()
        if gradient.abs().max() > 0
    )


def draw_elements(elements: pd.DataFrame) -> Axes:
    """Draw a weight's gradients by class in descending order, and name the class with the largest sum."""
    sizes = elements.assign(size=elements["gradient"].abs())
    ranks = sizes.groupby("class")["size"].rank(ascending=False, method="first")
    first = str(sizes.groupby("class")["size"].sum().idxmax())
    top = float(sizes["size"].max()) or 1.0
    return lines(
        sizes.assign(rank=ranks),
        x="rank",
        y="size",
        by="class",
        inks={str(name): SCHEME_INKS["none"] if str(name) == first else QUIET for name in sizes["class"].unique()},
        named=lambda name, _: f"class {name}" if name == first else "",
        log="y",
        y_limits=(1e-4 * top, 2 * top),
        title="Gradients of a weight by class",
        x_label="element, from the largest",
        y_label="|gradient|",
    )
