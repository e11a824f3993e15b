"""Runs on the GPUs of this machine, several of them side by side in one process for each GPU."""

from __future__ import annotations

import os
from functools import partial

from normless_lab.process import threads_of_each
from normless_lab.sweeps.executors.card_worker import serve_runs
from normless_lab.sweeps.executors.processes import ProcessExecutor
from normless_lab.train import Settings

# Of a process, which builds and converts networks on the CPU and trains none there.
MOST_THREADS = 4


class CardExecutor(ProcessExecutor):
    """A process for each GPU, in which runs take turns, each on a CUDA stream of its own; a context manager.

    The runs of a GPU share its copy of a data set. Each run has its own streams, generators and graphs, so its
    results do not depend on the others. A run that diverges or fails does not affect the others. A run that does not
    find enough memory waits until another run has ended. Other functions are called in between, one at a time.

    Args:
        together: the number of simultaneous runs on a GPU; if None, as many as memory and gain allow.
        cards: GPUs as in `CUDA_VISIBLE_DEVICES`, each with a process; if None, those that this process may use.

    Raises:
        ValueError: `together` is below 1.
    """

    def __init__(self, together: int | None = None, *, cards: tuple[str, ...] | None = None) -> None:
        if together is not None and together < 1:
            raise ValueError(f"Expected 1 or more runs together, got {together}.")
        chosen = visible_cards() if cards is None else cards
        serve = partial(serve_runs, threads=min(MOST_THREADS, threads_of_each(max(1, len(chosen)))), limit=together)
        super().__init__([partial(serve, card=card) for card in chosen or (None,)])


def uses_card(config: Settings) -> bool:
    """Return whether a run trains on a GPU of this machine, in one process."""
    import torch

    wanted = getattr(config, "device", "cpu") != "cpu" and getattr(config, "devices", 1) == 1
    return wanted and torch.cuda.is_available()


def visible_cards() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as in `CUDA_VISIBLE_DEVICES`, without initializing them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(named.split(",")[:count]) if named else tuple(map(str, range(count)))
