"""The converted network run once: every place that an edit changed must be passed exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from normless.edits.edit import Surgery
from normless.errors import UnsupportedEdit
from normless.lifting.calls import evaluating


def verify(surgery: Surgery) -> None:
    """Run the network on the surgery's inputs, in its own mode; buffers and random state stay as they are.

    Raises:
        UnsupportedEdit: it does not run any more, or a module that an edit put into it does not run exactly once.
    """
    runs: Counter[str] = Counter()
    handles = [_count(surgery.get(path), path, runs) for path in surgery.replaced]
    buffers = {name: buffer.clone() for name, buffer in surgery.model.named_buffers()}
    try:
        _run(surgery, runs)
    finally:
        for handle in handles:
            handle.remove()
        for name, buffer in surgery.model.named_buffers():
            buffer.copy_(buffers[name])
    missed = sorted(path for path in surgery.replaced if runs[path] != 1)
    if missed:
        raise UnsupportedEdit(
            f"In this {type(surgery.model).__name__} a forward pass does not call {missed[0]} once but "
            f"{runs[missed[0]]} times, so that the edits of it would not mean what they say."
        )


def _count(module: nn.Module, path: str, runs: Counter[str]) -> RemovableHandle:
    def record(*_: Any) -> None:
        runs[path] += 1

    return module.register_forward_hook(record)


def _run(surgery: Surgery, runs: Counter[str]) -> None:
    """One forward pass; in eval mode where training cannot take these inputs (a batch of one under batch norm)."""
    passes: tuple[Callable[[], Any], ...] = (lambda: _forward(surgery), lambda: _forward_in_eval(surgery))
    for attempt, forward in enumerate(passes):
        runs.clear()
        try:
            forward()
        except Exception as error:
            if attempt + 1 == len(passes):
                raise UnsupportedEdit(
                    f"The converted {type(surgery.model).__name__} does not run on the example inputs: {error}"
                ) from error
        else:
            return


def _forward(surgery: Surgery) -> None:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        surgery.model(*surgery.inputs, **surgery.kwargs)


def _forward_in_eval(surgery: Surgery) -> None:
    with evaluating(surgery.model):
        surgery.model(*surgery.inputs, **surgery.kwargs)
