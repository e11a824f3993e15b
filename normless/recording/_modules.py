"""Follow the runs of modules and the calls of torch functions in a pass; keep torch from running fused operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


@dataclass(eq=False)
class ModuleRun:
    """A run of a module in a pass.

    Attributes:
        path: the module's path.
        module: the module.
        inputs: its positional arguments, until it ends.
        keywords: its keyword arguments, until it ends.
        number: the number of this run among those of the module, from 0.
        order: the number of this run among those of all modules.
        around: the call that runs the module, if calls are recorded; None for the network itself.
        calls: the calls that it makes, if they are recorded.
    """

    path: str
    module: nn.Module
    inputs: Any = None
    keywords: Any = None
    number: int = 0
    order: int = 0
    around: Any = None
    calls: list[Any] = field(default_factory=list)


Enter = Callable[[ModuleRun], object]
"""Receives a run that begins."""
Leave = Callable[[ModuleRun, Any], object]
"""Receives a run that ends and its output, None after an error."""


@contextmanager
def followed(model: nn.Module, enter: Enter | None = None, leave: Leave | None = None) -> Iterator[list[ModuleRun]]:
    """Call `enter` before each module's forward and `leave` after it; yield the runs in progress, outermost first.

    A pass through the network itself starts anew. Passes of other threads are not followed.
    """
    running: list[ModuleRun] = []
    counts: Counter[str] = Counter()
    order = count()
    thread = get_ident()

    def before(path: str, module: nn.Module, inputs: Any, keywords: Any) -> None:
        nonlocal order
        # torch.cond compiles its branches with these hooks.
        if torch.compiler.is_dynamo_compiling() or get_ident() != thread:
            return
        if path == "":
            running.clear()
            counts.clear()
            order = count()
        run = ModuleRun(path, module, inputs, keywords, counts[path], next(order))
        counts[path] += 1
        if enter is not None:
            enter(run)
        running.append(run)

    def after(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if running and not torch.compiler.is_dynamo_compiling() and get_ident() == thread:
            run = running.pop()
            if leave is not None:
                leave(run, output)
            run.inputs = run.keywords = None

    with ExitStack() as stack:
        for path, module in model.named_modules():
            # TorchScript refuses these hooks; its modules count as part of the module around them.
            if isinstance(module, torch.jit.ScriptModule):
                continue
            enters = module.register_forward_pre_hook(partial(before, path), prepend=True, with_kwargs=True)
            stack.callback(enters.remove)
            # What hooks of the person make of the output is no part of the module.
            stack.callback(module.register_forward_hook(after, prepend=True, always_call=True).remove)
        yield running


class Observer(TorchFunctionMode):
    """Receive the calls of torch functions and, inside `following`, the runs of a network's modules.

    Attributes:
        stack: the runs in progress, outermost first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[ModuleRun] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "") or str(func)
        if name == "__get__":
            # Reading an attribute of a tensor is a call of its descriptor.
            name = getattr(getattr(func, "__self__", None), "__name__", name)
        return self.on_function(name, func, args, kwargs or {})

    def on_function(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call, and return its result."""
        return function(*args, **kwargs)

    def on_enter(self, run: ModuleRun) -> None:
        """Called before a module's forward."""

    def on_leave(self, run: ModuleRun, output: Any) -> None:
        """Called after a module's forward; the output is None after an error."""

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Observe the passes of the body through a network."""
        with followed(model, self.on_enter, self.on_leave) as self.stack, self:
            yield


def never_fuse(model: nn.Module) -> None:
    """Disable the fused path of torch's encoder layers permanently, since it bypasses modules and needs norms."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
