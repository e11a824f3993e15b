"""Measuring without leaving a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn


@contextmanager
def undisturbed(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Run the body with the model in one mode; then put back mode, buffers and torch's random state.

    Buffers hold the running statistics of norms, which a forward pass in training mode moves. What is put back
    is put back whatever happens in the body.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.train(training)
    devices = {tensor.device for tensor in chain(model.parameters(), model.buffers()) if tensor.is_cuda}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
