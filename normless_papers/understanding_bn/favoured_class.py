"""Without batch norm one class is favoured for every image: its logit (figure 4), its gradients (figures 20, 21)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from normless.plots import PLOTS, QUIET, SCHEME_INKS, lines
from normless.probes import agreement
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import replicates
from normless_papers.plots import GRADIENT_BY_CLASS
from normless_papers.probes import for_each_class
from normless_papers.stated_claims import Tests, decided, exceeds, in_all, lies_within
from normless_papers.understanding_bn.initial_pass import WEIGHT_52, class_pass_of, pass_of
from normless_papers.understanding_bn.initializations import Draw, Initializations, Measured, decades

# "The one class that the network almost always guesses" (appendix L).
ALMOST_ALWAYS = 0.9
# Sums of ten gradients in float64, each relative to the largest element of the parameter's.
_SUM_ROUNDING = 1e-9


def _favoured_class(facts: Measured) -> Tests:
    without, with_norm = facts.both
    variation = [replicates(rows["column_deviation"] / rows["column_mean"]) for rows in (without, with_norm)]
    return {
        f"Without batch norm one class is predicted for at least {ALMOST_ALWAYS:.0%} of the images of the "
        "minibatch, in every draw.": in_all(
            without["predicted_share"] >= ALMOST_ALWAYS, smallest_share=without["predicted_share"].min()
        ),
        "That class's gradients are large for the images of other classes: on average more than half of the "
        "largest possible, 1.": exceeds(without["column_mean"], 0.5),
        "They are roughly constant: their deviation over images is less than a quarter of their mean.": exceeds(
            0.25, variation[0]
        ),
        "With batch norm the gradients of the class with the largest depend more on the image: deviation over "
        "mean is larger.": exceeds(variation[1], variation[0]),
        "Over all classes signs agree less with batch norm, Σ_j|Σ_b g|/Σ_jb|g|.": exceeds(
            *facts.estimates("agreement")
        ),
        "The largest gradient of the final bias is smaller with batch norm.": exceeds(
            *facts.estimates("bias_gradient")
        ),
    }


@artefact("understanding-bn/figure-4", basis="measurement", checks=_favoured_class)
def favoured_class(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 4: the gradient of one class's logit is large and positive for all images of other classes."""
    setting = Initializations(context, data, batch_size, draws)
    return setting.evidence(
        lambda draw: _favourite(pass_of(draw)["logits"], pass_of(draw)["logits_by_example"]),
        "Rows are of the class with the largest bias gradient; `column_…` are over images of other classes, "
        "where the gradient is the predicted probability of that class, and hence positive.",
        "The figure shows the first draw.",
        draw=lambda: setting.side_by_side(_map),
    )


def _favourite(by_class: pd.DataFrame, by_example: pd.DataFrame) -> pd.DataFrame:
    """A row on the class with the largest bias gradient."""
    largest = by_class.sort_values("bias_gradient").iloc[-1]
    others = by_example[(by_example["class"] == largest["class"]) & ~by_example["is_target"]]["gradient"]
    row = {"class": int(largest["class"]), "predicted_share": float(largest["predicted_share"])}
    row |= {"column_mean": float(others.mean()), "column_deviation": float(others.std(ddof=0))}
    row |= {"bias_gradient": float(largest["bias_gradient"]), "agreement": agreement(by_class)}
    return pd.DataFrame([row])


def _map(draw: Draw, axes: Axes, title: str) -> None:
    PLOTS["logit_matrix"](pass_of(draw)["logits_by_example"], axes, title=f"{title}, ∂L_b/∂z_j")


def _predicted(dominant: pd.DataFrame) -> Tests:
    return {
        "The class with the largest gradients is the one that the untrained network almost always guesses, for at "
        f"least {ALMOST_ALWAYS:.0%} of the images, in every draw.": in_all(
            dominant["predicted_share"] >= ALMOST_ALWAYS, smallest_share=dominant["predicted_share"].min()
        )
    }


def _elements_of_classes(facts: Measured) -> Tests:
    dominant = facts.by_draw(batch_norm=False)
    return {
        **_predicted(dominant),
        "One class has far larger impact than any other: its mean |gradient| is more than three times that of the "
        "next (log₁₀ of the ratio above log₁₀ 3).": exceeds(
            decades(dominant["share"] / dominant["next_share"]), math.log10(3)
        ),
        "It has the largest gradient of all classes in the majority of the kernel's elements.": exceeds(
            dominant["leading_share"], 0.5
        ),
    }


@artefact("understanding-bn/figure-20", basis="measurement", checks=_elements_of_classes)
def elements_of_classes(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 20: one class, the one always predicted, makes the majority of the absolute gradients of the kernel."""
    setting = Initializations(context, data, batch_size, draws)

    def dominance(draw: Draw) -> pd.DataFrame:
        tables = class_pass_of(draw)
        ordered = tables["sizes"].sort_values("mean_abs", ascending=False)
        dominant = ordered.iloc[0]
        row = {name: dominant[name] for name in ("class", "share", "predicted_share")}
        row |= {"next_share": ordered["share"].iloc[1]}
        return pd.DataFrame([row | {"leading_share": _leading(tables["elements"], int(dominant["class"]))}])

    return setting.evidence(
        dominance,
        "Rows are of the class with the largest mean |gradient|; the figure shows the first draw.",
        "The sum over classes has half of its size from that class by construction: where it is predicted with "
        "certainty its logit has the gradient 1 for nine images in ten, and every other class -1 for one in ten. "
        "So the majority is counted in elements.",
        draw=lambda: draw_elements(class_pass_of(Draw(setting, False, 0))["elements"]),
        batch_norm=(False,),
        layer=52,
        parameter=WEIGHT_52,
    )


def _leading(elements: pd.DataFrame, dominant: int) -> float:
    """The share of elements, those without gradient left out, in which a class has the largest."""
    sizes = elements.assign(size=elements["gradient"].abs()).pivot(index="element", columns="class", values="size")
    alive = sizes[sizes.max(axis=1) > 0]
    return float((alive.idxmax(axis=1) == dominant).mean()) if len(alive) else float("nan")


def _gradient_of_classes(facts: Measured) -> Tests:
    rows = facts.by_draw(batch_norm=False).reset_index()
    by_draw = rows.groupby("draw")["mean_abs"]
    ratio = by_draw.max() / ((by_draw.sum() - by_draw.max()) / (by_draw.count() - 1))
    return {
        **_predicted(rows.loc[by_draw.idxmax()]),
        "The dominant class's mean |gradient| is about ten times the mean of the others, within half a decade "
        "(log₁₀ of the ratio).": lies_within(decades(ratio), 0.5, 1.5),
    }


@artefact("understanding-bn/figure-21", basis="measurement", checks=_gradient_of_classes)
def gradient_of_classes(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 21: the dominant class's mean absolute gradient is about ten times that of the other classes."""
    setting = Initializations(context, data, batch_size, draws)
    return setting.evidence(
        lambda draw: class_pass_of(draw)["sizes"],
        "The figure shows the first draw.",
        "The caption has about one order of magnitude, the text at least one. Of ten equally frequent classes "
        "nine images in ten have the dominant class's gradient and one in ten that of each other, a factor of 9: "
        "the caption's is checked.",
        draw=lambda: GRADIENT_BY_CLASS(class_pass_of(Draw(setting, False, 0))["sizes"]),
        batch_norm=(False,),
        layer=52,
        parameter=WEIGHT_52,
    )


def _class_wise_mask(facts: Measured) -> Tests:
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
def masked_gradients(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Appendix L: gradients propagated from one class's logit at a time add up to the whole gradient."""
    setting = Initializations(context, data, batch_size, draws)
    return setting.evidence(
        _sums,
        "`deviation` is the largest over parameters of max|Σ over classes - whole| / max|whole|; `alone` is the "
        "same for one class in place of the sum, at its largest. `mean_abs` is of all parameters together.",
        "The figure shows the first draw without batch norm.",
        draw=lambda: GRADIENT_BY_CLASS(_sums(Draw(setting, False, 0))),
        precision="float64",
    )


def _sums(draw: Draw) -> pd.DataFrame:
    """A row per class: the size of its gradients, and the deviation of their sum and of the class alone."""
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
    """The largest max|difference| / max|whole| over the parameters that have a gradient."""
    ratios = [
        float((first[name] - gradient).abs().max() / gradient.abs().max())
        for name, gradient in whole.items()
        if gradient.abs().max() > 0
    ]
    return max(ratios)


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
