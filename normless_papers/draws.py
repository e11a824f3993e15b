"""Random draws that an artefact's seed decides, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw in the body from torch's CPU generator started at `seed`; afterwards it is where it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
