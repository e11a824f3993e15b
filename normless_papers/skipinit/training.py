"""SkipInit and its variants on CIFAR: over depths (appendix E), and over batch sizes (figures 4, 6, 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots import inks_of, optimum_against
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network
from normless_papers.claims import Claim, larger
from normless_papers.evidence import with_quantities
from normless_papers.experiments.de_smith import ACCURACY, over_batch_sizes, register, wide_resnet_text
from normless_papers.experiments.de_smith_claims import BEST_BATCH, DeclaredComparison, compared
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs

GHOST = 32
GHOST_BATCHES, WHOLE_BATCHES = f"batch-size-{GHOST}", "batch-size-whole"


def _ghost_batch_size(facts: tuple[DeclaredComparison, DeclaredComparison]) -> list[Claim]:
    """Check batch norm over batch sizes, with statistics of the whole batch and of ghost batches."""
    whole, ghost = facts
    largest = whole.sizes[-1]
    return [
        larger(
            f"At batch size {largest} ghost batches of {GHOST} are better than statistics over the whole batch.",
            replace(ghost.reached("batch_norm", largest), name="ghost batches"),
            replace(whole.reached("batch_norm", largest), name="whole batch"),
        ),
        larger(
            f"From batch size {BEST_BATCH} to {largest} batch norm loses more with statistics over the whole batch "
            f"than over ghost batches of {GHOST}.",
            replace(whole.decline("batch_norm", BEST_BATCH), name="whole batch"),
            replace(ghost.decline("batch_norm", BEST_BATCH), name="ghost batches"),
        ),
        whole.as_printed(whole.peak()),
    ]


def _whole_and_ghost(
    context: Context, *, batch_sizes: Sequence[int], depth: int, width: int, effort: Effort
) -> dict[str, TrainingSweeps]:
    model = wide_resnet_text(depth, width)
    return {
        name: over_batch_sizes(
            context, name, ("batch_norm",), batch_sizes, effort, model=model, ghost=size, metrics=(ACCURACY,)
        )
        for name, size in ((WHOLE_BATCHES, None), (GHOST_BATCHES, GHOST))
    }


@artefact("skipinit/ghost-batch-size", basis="training", checks=_ghost_batch_size, trains=_whole_and_ghost)
def ghost_batch_size(
    context: Context,
    runs: Mapping[str, Runs],
    *,
    batch_sizes: Sequence[int],
    depth: Network[int],
    width: Network[int],
    effort: Effort,
) -> Evidence:
    whole, ghost = (compared(runs[name], effort) for name in (WHOLE_BATCHES, GHOST_BATCHES))
    named = {"whole batch": whole, f"ghost batches of {GHOST}": ghost}
    optima = [facts.runs.optima(ACCURACY).assign(statistics=name) for name, facts in named.items()]
    tables = [facts.table().assign(quantity="optimum", statistics=name) for name, facts in named.items()]
    quantity = "best_batch_size_when_statistics_use_full_minibatch"
    measured = with_quantities({quantity: whole.best_batch()}, *tables)

    def draw() -> Axes:
        return optimum_against(
            pd.concat(optima, ignore_index=True),
            series="statistics",
            across="batch_size",
            inks=inks_of(dict.fromkeys(named, "batch_norm")),
            title="Batch norm and its statistics",
            y_label="test accuracy (%)",
        )

    evidence = whole.evidence("", measured=measured)
    return replace(evidence, facts=(whole, ghost), draw=draw)


register("skipinit")
