"""torch's fused transformer layers, which compute past the modules that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def unfused() -> Iterator[None]:
    """Let no transformer layer or attention of torch take its fused path, which exists in evaluation mode alone."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def never_fuse(model: nn.Module) -> None:
    """Take the fused path from torch's encoder layers for good: it runs none of the modules they hold.

    Without a norm it cannot even be asked for, since torch then compares what is in the norms' places.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
