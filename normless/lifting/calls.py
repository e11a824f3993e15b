"""How modules are called in one pass through a network, which runs every module: no fused path skips any."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn


@contextmanager
def running(model: nn.Module, training: bool | None = None) -> Iterator[None]:
    """No gradients, in one mode or in each module's own; modes, buffers and random state become what they were."""
    is_training = any(module.training for module in model.modules()) if training is None else training
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()} if is_training else {}
    try:
        with in_mode(model, training), torch.no_grad(), unfused(), warnings.catch_warnings():
            # What a pass warns of (no gradients in a checkpoint) the network's own pass will warn of.
            warnings.simplefilter("ignore")
            with torch.random.fork_rng(devices=[]):
                yield
    finally:
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])


@contextmanager
def in_mode(model: nn.Module, training: bool | None) -> Iterator[None]:
    """One mode for all modules, or for None each module's own; afterwards each is in its own again."""
    modes = {module: module.training for module in model.modules()}
    try:
        if training is not None:
            model.train(training)
        yield
    finally:
        for module, before in modes.items():
            module.training = before


@contextmanager
def followed(
    model: nn.Module, enter: Callable[[str, nn.Module, Any], None], leave: Callable[..., None] = lambda *_: None
) -> Iterator[None]:
    """Call `enter` with a module's path as its forward begins, and `leave` as it ends."""
    with ExitStack() as stack:
        for path, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(partial(enter, path), prepend=True).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


@contextmanager
def unfused() -> Iterator[None]:
    """Disable the fused path of torch's transformer layers and attention, which exists in evaluation mode only."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def never_fuse(model: nn.Module) -> None:
    """Disable the fused path of torch's encoder layers permanently: it runs no modules, and needs norms."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
