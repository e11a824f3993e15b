"""Run a network under conversion on its calibration batches, and read the values of channels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from normless._internal.arguments import CallArguments, applied, on_device_of
from normless._internal.overwriting import staying
from normless.edits._surgery import Surgery
from normless.errors import NormlessError
from normless.recording._modules import is_transformed
from normless.recording._passes import tensors_in
from normless.state import running

# The most values that are kept of a layer's outputs.
_MOST_VALUES = 2**20


class Enough(NormlessError):  # noqa: N818
    """Ends a pass whose later layers need not run."""


@contextmanager
def hooked(surgery: Surgery, paths: Iterable[str], hook: Callable[..., Any]) -> Iterator[None]:
    """Register a forward hook on modules; the module's path is its first argument. What it writes stays."""
    hook = staying(hook)
    with ExitStack() as stack:
        for path in paths:
            stack.callback(surgery.get(path).register_forward_hook(partial(hook, path)).remove)
        yield


def profile(surgery: Surgery, paths: Iterable[str], hook: Callable[..., Any]) -> None:
    """Run the network on its example inputs in evaluation, with a hook as in `hooked`."""
    inputs, kwargs = surgery.example
    with hooked(surgery, paths, _of_values(surgery, hook)), running(surgery.model, False, inputs, kwargs):
        applied(surgery.model, *inputs, **kwargs)


def _of_values(surgery: Surgery, hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook, as in `hooked`, that refuses modules inside transforms of torch.func."""

    def receive(path: str, *given: Any) -> Any:
        if is_transformed():
            why = "it runs inside a transform of torch.func, where no values are seen; convert the function alone"
            raise surgery.unsupported(path, why)
        return hook(path, *given)

    return receive


def run_batches(
    surgery: Surgery, paths: Iterable[str], hook: Callable[..., Any], batches: Sequence[CallArguments] = ()
) -> list[list[Tensor]]:
    """Run the network on batches, by default those of the calibration, in evaluation, with a hook as in `hooked`.

    Return the floating-point tensors that it returns for each batch, on the CPU; a hook may raise `Enough`.
    """
    outputs: list[list[Tensor]] = []
    taken = batches or surgery.calibration.batches or [surgery.example]
    with hooked(surgery, paths, _of_values(surgery, hook)), running(surgery.model, False, taken):
        for given in taken:
            inputs, kwargs = on_device_of(surgery.model, *given)
            try:
                returned = applied(surgery.model, *inputs, **kwargs)
            except Enough:
                continue
            floating = (tensor for tensor in tensors_in(returned) if tensor.is_floating_point())
            outputs.append([tensor.detach().float().cpu() for tensor in floating])
    return outputs


def rows_of(x: Tensor, axis: int, batches: int) -> Tensor:
    """Return the values of each channel of x, (C, n) in float32 on the CPU: all, or at positions drawn once for all.

    The channels are on `axis`; if that is the number of axes, all values are one channel.
    """
    rows = x.detach().flatten()[None] if axis == x.dim() else x.detach().movedim(axis, 0).flatten(1)
    most = max(_MOST_VALUES // batches // len(rows), 64)
    if rows.shape[1] > most:
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(rows.shape[1], generator=generator)[:most].sort().values
        rows = rows[:, chosen.to(rows.device)]
    return rows.float().cpu().clone()
