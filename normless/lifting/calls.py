"""Context managers for passes through a network: modes, hooks, and no fused paths that skip modules."""

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
    """Run without gradients, in one mode or each module's own; restore modes, buffers and random state afterwards."""
    is_training = any(module.training for module in model.modules()) if training is None else training
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()} if is_training else {}
    try:
        with in_mode(model, training), torch.no_grad(), unfused(), warnings.catch_warnings():
            # The network's own pass will repeat these warnings (such as no gradients in a checkpoint).
            warnings.simplefilter("ignore")
            with torch.random.fork_rng(devices=[]):
                yield
    finally:
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])


@contextmanager
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


@contextmanager
def followed(
    model: nn.Module, enter: Callable[[str, nn.Module, Any], None], leave: Callable[..., None] = lambda *_: None
) -> Iterator[None]:
    """Call `enter` with a module's path before its forward runs, and `leave` after it."""
    with ExitStack() as stack:
        for path, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(partial(enter, path), prepend=True).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


@contextmanager
def unfused() -> Iterator[None]:
    """Disable the fused path that torch's transformer layers and attention take in evaluation."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def never_fuse(model: nn.Module) -> None:
    """Disable the fused path of torch's encoder layers permanently, since it bypasses modules and needs norms."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
