"""Follow the modules that run in a pass, and keep torch from running fused operations in place of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import nn

Enter = Callable[[str, nn.Module, Any], None]
"""Receives a module's path, the module and its inputs."""
Leave = Callable[[str, nn.Module, Any], None]
"""Receives a module's path, the module and its output, None after an error."""


@contextmanager
def followed(model: nn.Module, enter: Enter | None = None, leave: Leave | None = None) -> Iterator[list[str]]:
    """Call `enter` before each module's forward and `leave` after it; yield the paths of the running modules.

    The path of the innermost module is the last. A pass through the network itself starts anew. Passes of other
    threads are not followed.
    """
    running: list[str] = []
    thread = get_ident()

    def before(path: str, module: nn.Module, inputs: Any) -> None:
        # torch.cond compiles its branches with these hooks.
        if torch.compiler.is_dynamo_compiling() or get_ident() != thread:
            return
        if path == "":
            running.clear()
        if enter is not None:
            enter(path, module, inputs)
        running.append(path)

    def after(module: nn.Module, _: Any, output: Any) -> None:
        if running and not torch.compiler.is_dynamo_compiling() and get_ident() == thread:
            path = running.pop()
            if leave is not None:
                leave(path, module, output)

    with ExitStack() as stack:
        for path, module in model.named_modules():
            # TorchScript refuses these hooks; its modules count as part of the module around them.
            if isinstance(module, torch.jit.ScriptModule):
                continue
            stack.callback(module.register_forward_pre_hook(partial(before, path), prepend=True).remove)
            # What hooks of the person make of the output is no part of the module.
            stack.callback(module.register_forward_hook(after, prepend=True, always_call=True).remove)
        yield running


def never_fuse(model: nn.Module) -> None:
    """Disable the fused path of torch's encoder layers permanently, since it bypasses modules and needs norms."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
