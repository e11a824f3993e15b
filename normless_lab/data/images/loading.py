"""Batches of examples that worker processes read. The workers end with the iteration, however it ends."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from normless.errors import NormlessError


def batches_of(dataset: Dataset[Any], keys: list[Any], *, workers: int, pin_memory: bool) -> Iterator[Any]:
    """Return the collated examples of each list of keys, read by worker processes; 0 workers read in this one.

    An example that cannot be read is a `NormlessError` that the dataset returns in its place; it is raised here.
    """
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=keys,
        num_workers=workers,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # else the loader would draw from the global one
        multiprocessing_context=_start_method() if workers else None,
        worker_init_fn=_ignore_sigterm,
        collate_fn=_collated,
    )
    batches = iter(loader)
    # The traceback of an error and a suspended generator keep workers alive, and Python waits for them at exit.
    end = partial(_end, batches, os.getpid())
    atexit.register(end)
    try:
        for batch in batches:
            if isinstance(batch, NormlessError):
                raise batch
            yield batch
    finally:
        end()
        atexit.unregister(end)


def _collated(examples: list[Any]) -> Any:
    """Return a batch, or the error of the first example that could not be read."""
    error = next((example for example in examples if isinstance(example, NormlessError)), None)
    return default_collate(examples) if error is None else error


def _end(batches: Any, owner: int) -> None:
    """End the workers of an iterator, except in a process that was forked from its own.

    A worker that still reads after some seconds is killed, since it ignores SIGTERM, by which torch would end it.
    """
    workers = getattr(batches, "_workers", ())
    if not workers or os.getpid() != owner:
        return
    try:
        batches._shutdown_workers()
    finally:
        for worker in workers:
            worker.kill()


def _start_method() -> str | None:
    """Return how to start the worker processes; None for Python's default.

    In a spawned worker of a sweep the default is to spawn them too, which takes seconds of imports in each epoch.
    """
    return "fork" if sys.platform == "linux" and multiprocessing.parent_process() is not None else None


def _ignore_sigterm(_: int) -> None:
    """Leave SIGTERM, which a cluster sends to every process of a job, to the process that trains: it saves first."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
