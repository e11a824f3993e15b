"""The converted network run once: every place that an edit changed must be passed exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normless.edits.edit import Surgery
from normless.errors import UnsupportedEditError
from normless.lifting.calls import evaluating
from normless.nn import ResidualSum, ScalarAffine


def verify(surgery: Surgery) -> None:
    """Run the network on the surgery's inputs, in its own mode; buffers and random state stay as they are.

    Raises:
        UnsupportedEditError: it does not run any more, a module that an edit put into it does not run exactly once,
            or a multiplier that starts at 0 is at the end of a branch that is 0 whatever its input.
    """
    runs: Counter[str] = Counter()
    handles = [_count(surgery.get(path), path, runs) for path in surgery.replaced]
    buffers = {name: buffer.clone() for name, buffer in surgery.model.named_buffers()}
    try:
        _run(surgery, runs)
    finally:
        for handle in handles:
            handle.remove()
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
    """See that no multiplier of 0 comes behind a branch of 0: neither would ever get a gradient."""
    closed: dict[str, nn.Module] = {
        path: module
        for path, module in surgery.model.named_modules()
        if isinstance(module, (ScalarAffine, ResidualSum))
        and module.multiplier is not None
        and not module.multiplier.any()
    }
    dead: list[str] = []
    handles = [module.register_forward_hook(_notes_dead(path, dead)) for path, module in closed.items()]
    try:
        if closed:
            with _opened(closed.values()):
                _forward_in_eval(surgery)
    except Exception as error:
        raise UnsupportedEditError(
            f"The converted {type(surgery.model).__name__} does not run on the example inputs in evaluation mode: "
            f"{error}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if dead:
        raise UnsupportedEditError(
            f"A multiplier that starts at 0 is not possible at {dead[0]} of this {type(surgery.model).__name__}: its "
            "branch returns 0 on the example inputs by itself, so that neither would ever get a gradient. A branch "
            "that starts at 0 needs no other zero: let the multiplier start at 1, as skipinit(alpha=1) does."
        )


@contextmanager
def _opened(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Their multipliers at 1."""
    multipliers = [cast(Tensor, module.multiplier) for module in modules]
    try:
        for multiplier in multipliers:
            multiplier.data.fill_(1)
        yield
    finally:
        for multiplier in multipliers:
            multiplier.data.zero_()


def _notes_dead(path: str, dead: list[str]) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    """A hook that notes a module whose branch is 0 where what it is added to, or made of, is not."""

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        beside, branch = inputs if isinstance(module, ResidualSum) else (inputs[0] if inputs else output, output)
        if bool(beside.any()) and not bool(branch.any()):
            dead.append(path)

    return note


def _count(module: nn.Module, path: str, runs: Counter[str]) -> RemovableHandle:
    def record(*_: Any) -> None:
        runs[path] += 1

    return module.register_forward_hook(record)


def _run(surgery: Surgery, runs: Counter[str]) -> None:
    """One forward pass; in eval mode where training cannot take these inputs (a batch of one under batch norm)."""
    passes: tuple[Callable[[], Any], ...] = (lambda: _forward(surgery), lambda: _forward_in_eval(surgery))
    for attempt, forward in enumerate(passes):
        runs.clear()
        try:
            forward()
        except Exception as error:
            if attempt + 1 == len(passes):
                raise UnsupportedEditError(
                    f"The converted {type(surgery.model).__name__} does not run on the example inputs: {error}"
                ) from error
        else:
            return


def _forward(surgery: Surgery) -> None:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        surgery.model(*surgery.inputs, **surgery.kwargs)


def _forward_in_eval(surgery: Surgery) -> None:
    with evaluating(surgery.model):
        surgery.model(*surgery.inputs, **surgery.kwargs)
