"""What each class contributes to the gradients of layer 52 (figures 20 and 21)."""

from __future__ import annotations

import pandas as pd

from normless.papers.artefact import Context, artefact
from normless.papers.estimates import decades_over_draws, in_every, over_draws, within
from normless.papers.evidence import Evidence
from normless.papers.understanding_bn.networks import Draw, Initializations, conv_path
from normless.papers.verdict import Check, Estimate, larger
from normless.probes.backward.classwise import classwise_elements, classwise_gradients
from normless.report.probes.class_gradients import elements_by_class, gradient_by_class

_WEIGHT = f"{conv_path(52)}.weight"


@artefact("understanding-bn/figure-20", basis="measurement")
def elements_of_classes(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 20: one class, the one always predicted, makes the majority of the absolute gradients of the kernel."""
    setting = Initializations(context, data, batch_size, draws)
    shown: list[pd.DataFrame] = []

    def dominance(draw: Draw) -> pd.DataFrame:
        sizes = classwise_gradients(draw.model, draw.inputs, draw.targets, [_WEIGHT])
        elements = classwise_elements(draw.model, draw.inputs, draw.targets, _WEIGHT)
        if draw.number == 0:
            shown.append(elements)
        dominant = sizes.sort_values("mean_abs").iloc[-1]
        row = {name: dominant[name] for name in ("class", "share", "predicted_share")}
        return pd.DataFrame([row | {"leading_share": _leading(elements, int(dominant["class"]))}])

    measured = setting.measured(dominance, batch_norm=(False,))
    checks = (
        _predicted(measured),
        larger(
            "The dominant class makes more than half of the sum of mean |gradient| over classes.",
            over_draws(measured["share"]),
            Estimate(0.5),
        ),
        larger(
            "It has the largest gradient of all classes in more than half of the kernel's elements.",
            over_draws(measured["leading_share"]),
            Estimate(0.5),
        ),
    )
    return Evidence(
        measured,
        checks,
        setting.setup(layer=52, parameter=_WEIGHT),
        draw=lambda: elements_by_class(shown[0]),
        remarks=("Rows are of the class with the largest mean |gradient|; the figure shows the first draw.",),
    )


def _leading(elements: pd.DataFrame, dominant: int) -> float:
    """The share of elements, those without gradient left out, in which a class has the largest."""
    sizes = elements.assign(size=elements["gradient"].abs()).pivot(index="element", columns="class", values="size")
    alive = sizes[sizes.max(axis=1) > 0]
    return float((alive.idxmax(axis=1) == dominant).mean()) if len(alive) else float("nan")


def _predicted(measured: pd.DataFrame) -> Check:
    return in_every(
        "The class with the largest gradients is the one that the untrained network predicts for at least 95 % of "
        "the images, in every draw.",
        measured["predicted_share"] >= 0.95,
        smallest_share=measured["predicted_share"].min(),
    )


@artefact("understanding-bn/figure-21", basis="measurement")
def gradient_of_classes(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 21: the dominant class's mean absolute gradient is about ten times that of every other class."""
    setting = Initializations(context, data, batch_size, draws)
    measured = setting.measured(
        lambda draw: classwise_gradients(draw.model, draw.inputs, draw.targets, [_WEIGHT])[
            ["class", "mean_abs", "share", "predicted_share"]
        ],
        batch_norm=(False,),
    )
    by_draw = measured.groupby("draw")
    sizes = [rows["mean_abs"].sort_values(ascending=False).to_numpy(float) for _, rows in by_draw]
    dominant = measured.loc[by_draw["mean_abs"].idxmax()]
    others = decades_over_draws([size[0] / size[1:].mean() for size in sizes])
    following = decades_over_draws([size[0] / size[1] for size in sizes])
    checks = (
        _predicted(dominant),
        within(
            "The dominant class's mean |gradient| is about ten times the mean of the others, within half a decade "
            "(log₁₀ of the ratio).",
            others,
            0.5,
            1.5,
        ),
        larger(
            "It is at least ten times that of every other class, as the text says (log₁₀ of the ratio to the next).",
            following,
            Estimate(1.0),
        ),
    )
    first = measured[measured["draw"] == 0]
    return Evidence(
        measured,
        checks,
        setting.setup(layer=52, parameter=_WEIGHT),
        draw=lambda: gradient_by_class(first),
        remarks=("The figure shows the first draw.",),
    )
