"""Contexts that restore the state of a network (modes, buffers, gradients, random states) and of the process."""

from __future__ import annotations

import gc
import random
import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import nn

from normless._internal.restoring import attributes_kept
from normless.exclusive import borrowing


@borrowing
def running(model: nn.Module, training: bool | None = None) -> Iterator[None]:
    """Run a network without gradients, fused paths and warnings; modes and state as in `preserve_state`.

    Attributes too are as before: what forward code caches here has no gradients.
    """
    # The network's own pass will repeat its warnings (such as no gradients in a checkpoint).
    with attributes_kept(model), preserve_state(model, training=training), torch.no_grad(), unfused(), quiet():
        yield


@borrowing
def preserve_state(model: nn.Module, *, training: bool | None) -> Iterator[None]:
    """Run the body in training or evaluation mode (None keeps the mode of each module), and without `.grad`.

    Restored afterwards, after errors too, are all modes, the buffers, the parameters' `.grad` and the random states.
    """
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    with preserve_random_state(model), in_mode(model, training):
        try:
            for parameter, _ in gradients:
                parameter.grad = None
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            with torch.no_grad():
                for module, name, buffer, value in buffers:
                    # An expanded buffer cannot be written to, and so has its values still.
                    with suppress(RuntimeError):
                        buffer.copy_(value)
                    module._buffers[name] = buffer


@borrowing
def in_mode(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Set the mode of all modules, or keep each module's own for None; restore the modes afterwards."""
    modes = {module: module.training for module in model.modules()}
    try:
        if training is not None:
            model.train(training)
        yield
    finally:
        for module, before in modes.items():
            module.training = before


@borrowing
def preserve_random_state(model: nn.Module | None = None) -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch, on the CPU and the devices of a network if given."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    tensors = () if model is None else chain(model.parameters(), model.buffers())
    devices = {tensor.device for tensor in tensors}
    with ExitStack() as stack:
        stack.callback(random.setstate, states[0])
        stack.callback(np.random.set_state, states[1])
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in filter(has_generators, devices):
            stack.enter_context(torch.random.fork_rng(devices=[device], device_type=device.type))
        yield


def has_generators(device: torch.device) -> bool:
    """Whether a device has its own generators with states that torch saves by device, such as CUDA."""
    return device.type != "mps" and hasattr(getattr(torch, device.type, None), "get_rng_state")


@borrowing
def unfused() -> Iterator[None]:
    """Disable the fused path that torch's transformer layers and attention take in evaluation."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@borrowing
def collection_paused() -> Iterator[None]:
    """Suspend the search for reference cycles, which would visit all modules repeatedly and find nothing to free.

    With 10,000 layers it takes a sixth of the time of building, mapping and converting.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _InThread:
    """What a filter of warnings asks of a text: that it begins with a pattern, and that this thread warns."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._thread = re.compile(pattern), get_ident()

    def match(self, text: str) -> bool:
        """Whether the filter applies to a warning with this text."""
        return self._thread == get_ident() and self._pattern.match(text) is not None

    def end(self) -> None:
        """Apply to no further warning, since another thread may have kept the filter in a list of its own."""
        self._thread = -1


@contextmanager
def quiet(pattern: str = "") -> Iterator[None]:
    """Ignore the warnings of this thread whose text begins with a pattern; those of other threads are shown.

    `warnings.catch_warnings` would swallow these, and two threads would restore each other's filters.
    """
    own = _InThread(pattern)
    entry: Any = ("ignore", own, Warning, None, 0)
    warnings.filters.insert(0, entry)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        own.end()
        with suppress(ValueError):
            warnings.filters.remove(entry)  # type: ignore[attr-defined]
