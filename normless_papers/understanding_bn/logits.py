"""Without batch norm one class is favoured, whatever the image (figure 4)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import PLOTS, new_panels
from normless.probes import agreement
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, in_every, larger, replicates
from normless_papers.understanding_bn.networks import Initializations, Measured
from normless_papers.understanding_bn.passes import pass_of

# "The one class that the network almost always guesses" (appendix L).
ALMOST_ALWAYS = 0.9


def _favoured_class(found: Measured) -> list[Check]:
    without, with_norm = found.both
    variation = [replicates(rows["column_deviation"] / rows["column_mean"]) for rows in (without, with_norm)]
    return [
        in_every(
            f"Without batch norm one class is predicted for at least {ALMOST_ALWAYS:.0%} of the images of the "
            "minibatch, in every draw.",
            without["predicted_share"] >= ALMOST_ALWAYS,
            smallest_share=without["predicted_share"].min(),
        ),
        larger(
            "That class's gradients are large for the images of other classes: on average more than half of the "
            "largest possible, 1.",
            replicates(without["column_mean"]),
            Estimate(0.5),
        ),
        larger(
            "They are roughly constant: their deviation over images is less than a quarter of their mean.",
            Estimate(0.25),
            variation[0],
        ),
        larger(
            "With batch norm the gradients of the class with the largest depend more on the image: deviation over "
            "mean is larger.",
            variation[1],
            variation[0],
        ),
        larger(
            "Over all classes signs agree less with batch norm, Σ_j|Σ_b g|/Σ_jb|g|.",
            *(replicates(rows["agreement"]) for rows in (without, with_norm)),
        ),
        larger(
            "The largest gradient of the final bias is smaller with batch norm.",
            *(replicates(rows["bias_gradient"]) for rows in (without, with_norm)),
        ),
    ]


@artefact("understanding-bn/figure-4", basis="measurement", checks=_favoured_class)
def favoured_class(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 4: the gradient of one class's logit is large and positive for all images of other classes."""
    setting = Initializations(context, data, batch_size, draws)
    measured = setting.measured(lambda draw: _favourite(pass_of(draw).logits, pass_of(draw).logits_by_example))
    return Evidence(
        measured,
        Measured(measured),
        setting.setup(),
        draw=lambda: _maps({one.batch_norm: pass_of(one).logits_by_example for one in setting.first()}),
        remarks=(
            "Rows are of the class with the largest bias gradient; `column_…` are over images of other classes, "
            "where the gradient is the predicted probability of that class, and hence positive.",
            "The figure shows the first draw.",
        ),
        reduction=setting.reduction,
    )


def _favourite(by_class: pd.DataFrame, by_example: pd.DataFrame) -> pd.DataFrame:
    """A row on the class with the largest bias gradient."""
    largest = by_class.sort_values("bias_gradient").iloc[-1]
    others = by_example[(by_example["class"] == largest["class"]) & ~by_example["is_target"]]["gradient"]
    row = {"class": int(largest["class"]), "predicted_share": float(largest["predicted_share"])}
    row |= {"column_mean": float(others.mean()), "column_deviation": float(others.std(ddof=0))}
    row |= {"bias_gradient": float(largest["bias_gradient"]), "agreement": agreement(by_class)}
    return pd.DataFrame([row])


def _maps(matrices: dict[bool, pd.DataFrame]) -> Axes:
    panels = new_panels(2)
    for axes, kind, name in zip(panels, (False, True), ("Without batch norm", "With batch norm"), strict=True):
        PLOTS["logit_matrix"](matrices[kind], axes, title=f"{name}, ∂L_b/∂z_j")
    return panels[0]
