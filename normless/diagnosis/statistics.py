"""Are batch statistics taken over enough examples?"""

from __future__ import annotations

from math import sqrt

from normless.diagnosis.examination import Examination
from normless.diagnosis.finding import Check, Cure, Finding

NAME = "batch statistics"
# From 8 examples on the noise of a statistic is below a half; below it accuracy falls (De & Smith, figure 7).
ENOUGH = 8

_THEORY = (
    "The variance of n independent values is known to a relative standard deviation of √(2/(n-1)); the positions of "
    "one example are alike, so the examples are what counts. Every example's output then depends on who else is in "
    "the batch, and running averages lag behind it (De & Smith, appendix A; Kim et al. keep 256)."
)


def check_statistics(examination: Examination) -> Check:
    """Count the examples behind every statistic of a batch norm."""
    counted = examination.statistics.examples
    if not counted:
        return Check(NAME, "no batch norm in training mode", asked=False)
    examples = min(counted.values())
    few = [path for path, number in counted.items() if number < ENOUGH]
    summary = f"{len(counted)} batch norms, {examples} examples or more behind each statistic"
    if not few:
        return Check(NAME, summary)
    noise = sqrt(2 / (examples - 1)) if examples > 1 else float("inf")
    smallest = min(few, key=lambda path: examination.statistics.values[path])
    finding = Finding(
        "small_batch",
        0.85 if examples == 1 else 0.7 - 0.05 * examples,
        f"Batch norm takes its statistics over {examples} example{'s' * (examples > 1)}, in {len(few)} norms.",
        {
            "examples": examples,
            "norms": len(few),
            "relative_deviation_of_variance": noise,
            "values_in_smallest": examination.statistics.values[smallest],
            "smallest": smallest,
        },
        tuple(few),
        _THEORY,
        Cure(
            "take the norms out, or let them look at one example: nl.convert(model, 'skipinit', inputs); of a "
            "trained network nl.freeze(model) or nl.fold(model, inputs); with a larger batch, ghost_batch_norm",
            examination.possible(("skipinit", "fixup", "group_norm")),
        ),
    )
    return Check(NAME, summary, (finding,))
