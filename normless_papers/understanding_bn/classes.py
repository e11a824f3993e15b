"""What each class contributes to the gradients of layer 52 (figures 20 and 21)."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import QUIET, SCHEME_INKS, lines
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, in_every, larger, replicates, within
from normless_papers.plots import GRADIENT_BY_CLASS
from normless_papers.understanding_bn.logits import ALMOST_ALWAYS
from normless_papers.understanding_bn.networks import Draw, Initializations, Measured, decades
from normless_papers.understanding_bn.passes import WEIGHT_52, class_pass_of


def _predicted(dominant: pd.DataFrame) -> Check:
    return in_every(
        "The class with the largest gradients is the one that the untrained network almost always guesses, for at "
        f"least {ALMOST_ALWAYS:.0%} of the images, in every draw.",
        dominant["predicted_share"] >= ALMOST_ALWAYS,
        smallest_share=dominant["predicted_share"].min(),
    )


def _elements_of_classes(found: Measured) -> list[Check]:
    dominant = found.by_draw(batch_norm=False)
    return [
        _predicted(dominant),
        larger(
            "One class has far larger impact than any other: its mean |gradient| is more than three times that of "
            "the next (log₁₀ of the ratio above log₁₀ 3).",
            decades(dominant["share"] / dominant["next_share"]),
            Estimate(math.log10(3)),
        ),
        larger(
            "It has the largest gradient of all classes in the majority of the kernel's elements.",
            replicates(dominant["leading_share"]),
            Estimate(0.5),
        ),
    ]


@artefact("understanding-bn/figure-20", basis="measurement", checks=_elements_of_classes)
def elements_of_classes(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 20: one class, the one always predicted, makes the majority of the absolute gradients of the kernel."""
    setting = Initializations(context, data, batch_size, draws)

    def dominance(draw: Draw) -> pd.DataFrame:
        seen = class_pass_of(draw)
        ordered = seen.sizes.sort_values("mean_abs", ascending=False)
        dominant = ordered.iloc[0]
        row = {name: dominant[name] for name in ("class", "share", "predicted_share")}
        row |= {"next_share": ordered["share"].iloc[1]}
        return pd.DataFrame([row | {"leading_share": _leading(seen.elements, int(dominant["class"]))}])

    measured = setting.measured(dominance, batch_norm=(False,))
    return Evidence(
        measured,
        Measured(measured),
        setting.setup(layer=52, parameter=WEIGHT_52),
        draw=lambda: draw_elements(
            pd.concat(class_pass_of(draw).elements for draw in setting.first(batch_norm=(False,)))
        ),
        remarks=(
            "Rows are of the class with the largest mean |gradient|; the figure shows the first draw.",
            "The sum over classes has half of its size from that class by construction: where it is predicted with "
            "certainty its logit has the gradient 1 for nine images in ten, and every other class -1 for one in ten. "
            "So the majority is counted in elements.",
        ),
        reduction=setting.reduction,
    )


def _leading(elements: pd.DataFrame, dominant: int) -> float:
    """The share of elements, those without gradient left out, in which a class has the largest."""
    sizes = elements.assign(size=elements["gradient"].abs()).pivot(index="element", columns="class", values="size")
    alive = sizes[sizes.max(axis=1) > 0]
    return float((alive.idxmax(axis=1) == dominant).mean()) if len(alive) else float("nan")


def _gradient_of_classes(found: Measured) -> list[Check]:
    rows = found.by_draw(batch_norm=False).reset_index()
    by_draw = rows.groupby("draw")["mean_abs"]
    dominant = rows.loc[by_draw.idxmax()]
    ratio = by_draw.max() / ((by_draw.sum() - by_draw.max()) / (by_draw.count() - 1))
    return [
        _predicted(dominant),
        within(
            "The dominant class's mean |gradient| is about ten times the mean of the others, within half a decade "
            "(log₁₀ of the ratio).",
            decades(ratio),
            0.5,
            1.5,
        ),
    ]


@artefact("understanding-bn/figure-21", basis="measurement", checks=_gradient_of_classes)
def gradient_of_classes(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 21: the dominant class's mean absolute gradient is about ten times that of the other classes."""
    setting = Initializations(context, data, batch_size, draws)
    measured = setting.measured(lambda draw: class_pass_of(draw).sizes, batch_norm=(False,))
    return Evidence(
        measured,
        Measured(measured),
        setting.setup(layer=52, parameter=WEIGHT_52),
        draw=lambda: GRADIENT_BY_CLASS(
            pd.concat(class_pass_of(draw).sizes for draw in setting.first(batch_norm=(False,)))
        ),
        remarks=(
            "The figure shows the first draw.",
            "The caption has about one order of magnitude, the text at least one. Of ten equally frequent classes "
            "nine images in ten have the dominant class's gradient and one in ten that of each other, a factor of 9: "
            "the caption's is checked.",
        ),
        reduction=setting.reduction,
    )


def draw_elements(elements: pd.DataFrame) -> Axes:
    """The gradients of a weight's elements by class, from the largest; the class with the largest sum is named."""
    sizes = elements.assign(size=elements["gradient"].abs())
    ranks = sizes.groupby("class")["size"].rank(ascending=False, method="first")
    first = str(sizes.groupby("class")["size"].sum().idxmax())
    top = float(sizes["size"].max()) or 1.0
    return lines(
        sizes.assign(rank=ranks),
        x="rank",
        y="size",
        by="class",
        inks={str(one): SCHEME_INKS["none"] if str(one) == first else QUIET for one in sizes["class"].unique()},
        end_text=lambda name, _: f"class {name}" if name == first else "",
        log="y",
        y_limits=(1e-4 * top, 2 * top),
        title="Gradients of a weight by class",
        x_label="element, from the largest",
        y_label="|gradient|",
    )
