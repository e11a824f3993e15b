"""The states of torch's generators: the CPU's, and those of the devices of a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

import torch
from torch import nn


@contextmanager
def forked_generators(network: nn.Module) -> Iterator[None]:
    """Restore the states of torch's generators after the body, on the CPU and the devices of a network."""
    devices = {tensor.device for tensor in chain(network.parameters(), network.buffers())}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in devices:
            if has_generators(device):
                stack.enter_context(torch.random.fork_rng(devices=[device], device_type=device.type))
        yield


def has_generators(device: torch.device) -> bool:
    """Whether a device has generators of its own with states that torch saves by device, such as CUDA."""
    return device.type != "mps" and hasattr(getattr(torch, device.type, None), "get_rng_state")
