"""A forward pass of the converted network: every module that an edit put into it must run exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from normless.edits.edit import Surgery
from normless.errors import UnsupportedEditError
from normless.lifting import evaluating
from normless.nn import ResidualSum, ScalarAffine


def verify(surgery: Surgery) -> None:
    """Run the network on the surgery's inputs, in its own mode; buffers and random state stay as they are.

    Raises:
        UnsupportedEditError: it does not run any more, a module that an edit put into it does not run exactly once,
            or a multiplier that starts at 0 is at the end of a branch that is 0 whatever its input.
    """
    runs: Counter[str] = Counter()
    buffers = {name: buffer.clone() for name, buffer in surgery.model.named_buffers()}
    try:
        with _hooked({path: surgery.get(path) for path in surgery.replaced}, lambda path, *_: runs.update([path])):
            _run(surgery, runs)
    finally:
        for name, buffer in surgery.model.named_buffers():
            buffer.copy_(buffers[name])
    missed = sorted(path for path in surgery.replaced if runs[path] != 1)
    if missed:
        raise UnsupportedEditError(
            f"In this {type(surgery.model).__name__} a forward pass does not call {missed[0]} once but "
            f"{runs[missed[0]]} times, so that the edits of it would not mean what they say."
        )
    _refuse_dead_branches(surgery)


def _refuse_dead_branches(surgery: Surgery) -> None:
    """Refuse a multiplier of 0 after a branch of 0: neither would ever get a gradient."""
    closed: dict[str, nn.Module] = {
        path: module
        for path, module in surgery.model.named_modules()
        if isinstance(module, (ScalarAffine, ResidualSum))
        and module.multiplier is not None
        and not module.multiplier.any()
    }
    if not closed:
        return
    dead: list[str] = []

    def note(path: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        source, branch = inputs if isinstance(module, ResidualSum) else (inputs[0] if inputs else output, output)
        if bool(source.any()) and not bool(branch.any()):
            dead.append(path)

    multipliers = [cast(Tensor, module.multiplier) for module in closed.values()]
    try:
        for multiplier in multipliers:
            multiplier.data.fill_(1)
        with _hooked(closed, note):
            _run_in_eval(surgery, " in evaluation mode")
    finally:
        for multiplier in multipliers:
            multiplier.data.zero_()
    if dead:
        raise UnsupportedEditError(
            f"A multiplier that starts at 0 is not possible at {dead[0]} of this {type(surgery.model).__name__}: its "
            "branch returns 0 on the example inputs by itself, so that neither would ever get a gradient. A branch "
            "that starts at 0 needs no other zero: let the multiplier start at 1, as skipinit(alpha=1) does."
        )


@contextmanager
def _hooked(modules: dict[str, nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """A forward hook on modules, which is called with the module's path first."""
    handles = [module.register_forward_hook(partial(hook, path)) for path, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _run(surgery: Surgery, runs: Counter[str]) -> None:
    """One forward pass; in eval mode where training cannot take these inputs (a batch of one under batch norm)."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            surgery.model(*surgery.inputs, **surgery.kwargs)
    except Exception:
        runs.clear()
        _run_in_eval(surgery)


def _run_in_eval(surgery: Surgery, how: str = "") -> None:
    try:
        with evaluating(surgery.model):
            surgery.model(*surgery.inputs, **surgery.kwargs)
    except Exception as error:
        raise UnsupportedEditError(
            f"The converted {type(surgery.model).__name__} does not run on the example inputs{how}: {error}"
        ) from error
