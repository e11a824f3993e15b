"""Batch statistics over too few examples."""

from __future__ import annotations

from math import sqrt

from normless.diagnosis.examination import Examination
from normless.diagnosis.finding import Check, Finding

NAME = "batch statistics"
# From 8 examples on the noise of a statistic is below one half; with fewer, accuracy drops (De & Smith, figure 7).
ENOUGH = 8

_THEORY = (
    "The variance of n independent values has a relative standard deviation of √(2/(n-1)); positions of one example "
    "are correlated, so the number of examples counts. Every example's output then depends on the others in the "
    "batch, and running averages lag (De & Smith, appendix A; Kim et al. keep 256)."
)


def check_statistics(examination: Examination) -> Check:
    """Count the examples that the statistics of each batch norm are computed from."""
    sizes = examination.measured.BatchNormSizes
    if sizes.empty:
        return Check(NAME, "no batch norm in training mode", asked=False)
    examples, few = int(sizes["examples"].min()), sizes[sizes["examples"] < ENOUGH]
    summary = f"{len(sizes)} batch norms, {examples} examples or more for each statistic"
    if few.empty:
        return Check(NAME, summary)
    finding = Finding(
        "small_batch",
        0.85 if examples == 1 else 0.7 - 0.05 * examples,
        f"Batch norm takes its statistics over {examples} example{'s' * (examples > 1)}, in {len(few)} norms.",
        {
            "examples": examples,
            "norms": len(few),
            "relative_deviation_of_variance": sqrt(2 / (examples - 1)) if examples > 1 else float("inf"),
            "values_in_smallest": int(few["values"].min()),
            "smallest": str(few["values"].idxmin()),
        },
        tuple(few.index),
        _THEORY,
        examination.cure(
            "remove the norms, or use norms over single examples: nl.convert(model, 'skipinit', inputs); of a "
            "trained network nl.freeze(model) or nl.fold(model, inputs); with a larger batch, ghost_batch_norm",
            *("skipinit", "fixup", "group_norm"),
        ),
    )
    return Check(NAME, summary, (finding,))
