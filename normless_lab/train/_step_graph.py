"""A training step captured once as a CUDA graph and replayed: one launch instead of thousands."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.nn import every_kernel
from normless_lab.train._optimizers import CapturableSGD

# Eager steps before the capture: they create the optimizer's state, choose the algorithms of convolutions and
# compile code.
WARMUP = 3
# Types of plain values in modules; values of other types are compared by identity.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class StepGraph:
    """A step on batches of one shape: the first steps run eagerly, then the step is captured and replayed.

    The step consists of forward pass, loss, backward pass, clipping and optimizer. Everything that it reads and
    writes stays in place, so the weights, the optimizer's state and the states of the generators are equal to those
    of eager steps; learning rates become tensors on the GPU. A step that cannot be captured runs eagerly, and a
    warning gives the reason: the step waits for the GPU (`.item()`, a branch on data), or it changes Python state
    that a replay would not change (a counter in a module, a buffer that is assigned anew, Python's or NumPy's random
    numbers).

    Args:
        step: runs a step on a batch and returns a tensor of its results.
        network: the network that is trained, without a wrapper.
        optimizer: its optimizer.
        refusal: why the step is not to be captured; None to capture it.

    Attributes:
        refusal: why the step is not captured, if it is not.
    """

    def __init__(
        self,
        step: Callable[[Sequence[Tensor]], Tensor],
        network: nn.Module,
        optimizer: Optimizer,
        refusal: str | None = None,
    ) -> None:
        self._step = step
        self._network = network
        self._optimizer = optimizer
        self._shapes: tuple[Any, ...] | None = None
        self._warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output: Tensor | None = None
        self._was_captured = False
        self.refusal = refusal

    @property
    def in_words(self) -> str:
        """Captured, or why not."""
        if self._was_captured:
            return "captured"
        return f"not captured: {self.refusal or f'fewer than {WARMUP + 1} steps of one shape'}"

    def __call__(self, batch: Sequence[Tensor]) -> Tensor:
        """Run a step on a batch of tensors on the card and return its results."""
        shapes = tuple((value.shape, value.dtype) for value in batch)
        if self.refusal is not None or shapes != (self._shapes or shapes):
            return self._step(batch)
        self._shapes = shapes
        if self._graph is None and self._warm < WARMUP:
            return self._observed(batch)
        if self._graph is None:
            self._capture(batch)
        if self._graph is None or self._output is None:
            return self._step(batch)
        for static, value in zip(self._inputs, batch, strict=True):
            static.copy_(value)
        self._graph.replay()
        return self._output.clone()

    def _observed(self, batch: Sequence[Tensor]) -> Tensor:
        """Run an eager step, and find out whether it changes state that a replay would not change."""
        before = python_state(self._network)
        with every_kernel():
            output = self._step(batch)
        changed = first_difference(before, python_state(self._network))
        # The first step may fill caches.
        if changed is not None and self._warm:
            self._refuse(f"it changes {changed}, which a replay would not")
        self._warm += 1
        return output

    def _capture(self, batch: Sequence[Tensor]) -> None:
        """Capture the step without computing it. If this fails, the step runs eagerly from now on."""
        self._inputs = tuple(value.clone() for value in batch)
        rates_on(self._optimizer, self._inputs[0].device)
        self._optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, such as those of a loader, may go on.
            stream = torch.cuda.current_stream()
            with every_kernel(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                output = self._step(self._inputs)
        except Exception as error:  # errors of CUDA and of whatever code the network has
            self._inputs = ()
            self._optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            self._refuse(_first_line(error))
            return
        self._graph, self._output, self._was_captured = graph, output, True

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        warnings.warn(
            f"The training step is not captured as a CUDA graph and runs slower, operator by operator: {reason}. "
            "graph='never' leaves the attempt out.",
            stacklevel=2,
        )

    def close(self) -> None:
        """Release the graph and its memory."""
        self._graph, self._output, self._inputs = None, None, ()


def _first_line(error: BaseException) -> str:
    """The first error of a chain: what follows an error during a capture is that the capture failed."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"


def rates_on(optimizer: Optimizer, device: torch.device) -> None:
    """Turn the learning rates of an optimizer into tensors on a device, which a captured step reads."""
    for group in optimizer.param_groups:
        # Fused kernels read rates in single precision.
        kind = torch.float32 if group.get("fused") else torch.float64
        group["lr"] = torch.tensor(float(group["lr"]), device=device, dtype=kind)
        if "capturable" in group:
            group["capturable"] = True


def is_capturable(optimizer: Optimizer) -> bool:
    """Return whether a captured step of an optimizer reads its rates and counts its steps on the GPU."""
    if isinstance(optimizer, CapturableSGD):
        return True
    return all(group.get("fused") or "capturable" in group for group in optimizer.param_groups)


def python_state(network: nn.Module) -> Mapping[str, Any]:
    """What a step may change and a replay would not, by name: attributes of modules, buffers, random numbers.

    Plain values are kept as they are, tensors by identity and place in memory, containers by their items.
    """
    state: dict[str, Any] = {}
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            if name not in ("_modules", "_parameters", "_buffers", "__dict__"):
                state[f"the attribute {path}.{name}".replace(" .", " ")] = _trace_of(value)
        for name, buffer in module._buffers.items():
            state[f"the buffer {path}.{name}".replace(" .", " ")] = _trace_of(buffer)
    state["the state of Python's random numbers"] = hash(random.getstate())
    # What code of users may draw from.
    _, keys, position, *_ = np.random.get_state()  # noqa: NPY002
    state["the state of NumPy's random numbers"] = np.asarray(keys).tobytes(), position
    state["the state of torch's random numbers on the CPU"] = torch.get_rng_state().numpy().tobytes()
    return state


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Return the first name with a different value, or that only one of two states has."""
    names = [*before, *(name for name in after if name not in before)]
    return next(
        (name for name in names if name not in before or name not in after or before[name] != after[name]), None
    )


def _trace_of(value: Any, depth: int = 2) -> Any:
    if isinstance(value, _PLAIN):
        # NaN differs from itself.
        return repr(value)
    if isinstance(value, Tensor):
        return id(value), value.data_ptr()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if depth and isinstance(value, Mapping):
        return tuple((_trace_of(key, 0), _trace_of(item, depth - 1)) for key, item in value.items())
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return tuple(_trace_of(item, depth - 1) for item in value)
    return id(value)
