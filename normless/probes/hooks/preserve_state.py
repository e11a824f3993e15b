"""Context managers that restore a network and the random number generators after a measurement."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
import torch
from torch import nn


@contextmanager
def preserve_state(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Run the body in training or evaluation mode and without `.grad`; restore the network's state afterwards.

    Restored, after errors too, are the modes of all modules, the buffers (running statistics move in training mode),
    the parameters' `.grad` and the random states.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    with preserve_random_state(model):
        try:
            model.train(training)
            for parameter, _ in gradients:
                parameter.grad = None
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for parameter, gradient in gradients:
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)


@contextmanager
def preserve_random_state(model: nn.Module) -> Iterator[None]:
    """Restore the random states of Python, numpy and torch, on the CPU and the devices of a network."""
    devices = {tensor.device for tensor in chain(model.parameters(), model.buffers()) if tensor.is_cuda}
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
