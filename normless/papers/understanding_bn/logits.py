"""Without batch norm one class is favoured, whatever the image (figure 4)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from normless.papers.artefact import Context, artefact
from normless.papers.estimates import in_every, over_draws
from normless.papers.evidence import Evidence
from normless.papers.understanding_bn.networks import Draw, Initializations
from normless.papers.verdict import larger
from normless.probes.backward.logits import LogitGradientMatrix, LogitGradients, agreement
from normless.probes.watching.observe import observe
from normless.report.axes import new_panels, title_axes
from normless.report.probes.logit_gradients import logit_gradient_map


@artefact("understanding-bn/figure-4", basis="measurement")
def favoured_class(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 4: the gradient of one class's logit is large and positive for all images of other classes."""
    setting = Initializations(context, data, batch_size, draws)
    matrices: dict[bool, pd.DataFrame] = {}

    def favourite(draw: Draw) -> pd.DataFrame:
        by_class, by_example = LogitGradients(), LogitGradientMatrix()
        observe(draw.model, [by_class, by_example], draw.inputs, draw.targets)
        matrices.setdefault(draw.batch_norm, by_example.table())
        return _favourite(by_class.table(), by_example.table())

    measured = setting.measured(favourite)
    without, with_norm = (measured[measured["batch_norm"] == kind] for kind in (False, True))
    biases = [over_draws(rows["bias_gradient"]) for rows in (without, with_norm)]
    checks = (
        in_every(
            "Without batch norm one class is predicted for at least 95 % of the images of the minibatch, in every "
            "draw.",
            without["predicted_share"] >= 0.95,
            smallest_share=without["predicted_share"].min(),
        ),
        in_every(
            "Without batch norm that class's gradients are nearly constant and large for all images of other "
            "classes: mean above 0.5 (of at most 1) and deviation below 0.1, in every draw.",
            (without["column_mean"] > 0.5) & (without["column_deviation"] < 0.1),
            smallest_mean=without["column_mean"].min(),
            largest_deviation=without["column_deviation"].max(),
        ),
        larger(
            "With batch norm the gradients of the largest class vary more from image to image.",
            over_draws(with_norm["column_deviation"]),
            over_draws(without["column_deviation"]),
        ),
        larger(
            "Over all classes signs agree less with batch norm, Σ_j|Σ_b g|/Σ_jb|g|.",
            over_draws(without["agreement"]),
            over_draws(with_norm["agreement"]),
        ),
        larger(
            "The largest gradient of the final bias is much smaller with batch norm, by more than half of the "
            "largest possible, 1.",
            *biases,
            by=0.5,
        ),
    )
    return Evidence(
        measured,
        checks,
        setting.setup(),
        draw=lambda: _maps(matrices),
        remarks=(
            "Rows are of the class with the largest bias gradient; `column_…` are over images of other classes, "
            "where the gradient is the predicted probability of that class, and hence positive.",
            "The figure shows the first draw.",
        ),
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
        logit_gradient_map(matrices[kind], axes)
        title_axes(axes, f"{name}, ∂L_b/∂z_j")
    return panels[0]
