"""Runs that hand back control after every step, so that several of them take turns in one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from normless._internal.exclusive import borrowing
from normless_lab.train.pauses import Pauses

if TYPE_CHECKING:
    # Reading the file of a sweep must not import torch.
    import torch
    from torch import Tensor

Result = TypeVar("Result")


class Event(Protocol):
    """A point in the work of a card, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the card has reached it."""

    def synchronize(self) -> None:
        """Wait until the card has reached it."""


# A run, or a part of one, that yields after each step: None, or the event that it waits for.
Steps = Generator[Event | None, None, Result]


def event_on(device: torch.device) -> Event | None:
    """The end of the work that a card has been given on the current stream; None for the CPU, which waits itself."""
    if device.type != "cuda":
        return None
    import torch

    event: Any = cast(Any, torch.cuda.Event)()
    event.record()
    return cast(Event, event)


# Streams of runs that have ended, by card. torch keeps memory for each stream that was ever used.
_FREE_STREAMS: dict[int, list[Any]] = defaultdict(list)


class GlobalState:
    """What torch keeps once per process and a run needs for itself: generators, stream, default dtype, tensor cores.

    On a card every run has a stream of its own, so that the kernels of several runs overlap, and a state of the
    card's generator of its own, which its CUDA graph refers to.

    Attributes:
        device: the device of the run.

    Args:
        device: of the run.
        dtype: the default dtype of the run.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        import torch

        from normless._internal.state import has_generators

        self.device = device
        self._dtype = dtype
        self._generators = {"cpu": torch.get_rng_state()}
        self._card: Any = None
        if device.type == "cuda":
            cuda: Any = torch.cuda
            cuda.init()
            index = cuda.current_device() if device.index is None else device.index
            self._stream = _FREE_STREAMS[index].pop() if _FREE_STREAMS[index] else cuda.Stream(index)
            self._card = cuda.default_generators[index]
            self._card_generator = self._card.clone_state()
        elif has_generators(device):
            self._generators[device.type] = torch.get_device_module(device).get_rng_state(device)

    @borrowing
    def entered(self) -> Iterator[None]:
        """In the body torch has the state of the run; what it had before is restored, and the run's state kept.

        Other threads, such as one with another training, wait.
        """
        import torch

        from normless_lab.train.arithmetic import tensor_cores

        dtype, generators = torch.get_default_dtype(), self._exchanged(self._generators)
        card_generator = None if self._card is None else self._card.graphsafe_get_state()
        if dtype != self._dtype:
            torch.set_default_dtype(self._dtype)
        if self._card is not None:
            self._card.graphsafe_set_state(self._card_generator)
        try:
            stream = nullcontext() if self._card is None else torch.cuda.stream(self._stream)
            with stream, tensor_cores(self.device):
                yield
        finally:
            self._generators = self._exchanged(generators)
            if dtype != self._dtype:
                torch.set_default_dtype(dtype)
            if self._card is not None:
                self._card.graphsafe_set_state(card_generator)

    def _exchanged(self, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give generators these states, by the type of their device, and return those that they had."""
        import torch

        before = {"cpu": torch.get_rng_state()}
        torch.set_rng_state(states["cpu"])
        if self.device.type in states and self.device.type != "cpu":
            module = torch.get_device_module(self.device)
            before[self.device.type] = module.get_rng_state(self.device)
            module.set_rng_state(states[self.device.type], self.device)
        return before

    def release(self) -> None:
        """Leave the stream to other runs; the run has ended."""
        if self._card is not None:
            _FREE_STREAMS[self._stream.device_index].append(self._stream)
            self._card = None


@dataclass
class Run(Generic[Result]):
    """A run that is carried out turn by turn.

    Attributes:
        state: the global state of torch that belongs to the run; None for a run in one turn, which has its own.
        pauses: when the run is saved and when it stops.
        steps: the rest of the run, which returns its result.
        waits_for: the event on the card before which the run has nothing to do, or None.
    """

    state: GlobalState | None
    pauses: Pauses
    steps: Steps[Result]
    waits_for: Event | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for its card."""
        return self.waits_for is not None and not self.waits_for.query()

    def turn(self) -> None:
        """Carry out the run until it hands back control.

        Raises:
            StopIteration: the run has ended; `value` is its result.
        """
        try:
            with self._entered():
                self.waits_for = next(self.steps)
        except BaseException:
            self._release()
            raise

    def finish(self) -> Result:
        """Carry out the rest of the run and return its result."""
        while True:
            try:
                self.turn()
            except StopIteration as stop:
                result: Result = stop.value
                return result
            if self.waits_for is not None:
                self.waits_for.synchronize()

    def close(self) -> None:
        """End the run in its current state."""
        with self._entered():
            self.steps.close()
        self._release()

    def _release(self) -> None:
        if self.state is not None:
            self.state.release()

    def _entered(self) -> AbstractContextManager[None]:
        return nullcontext() if self.state is None else self.state.entered()
