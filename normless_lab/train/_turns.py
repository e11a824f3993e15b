"""Runs let others go on between their steps: those on the same card, and trainings of other threads."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, cast

from normless.exclusive import borrowing

if TYPE_CHECKING:
    # Reading the file of a sweep must not import torch.
    import torch
    from torch import Tensor

    from normless_lab.train._pauses import Pauses

# The `state` of the run and the `turn` of the thread.
_OF_THREAD = threading.local()


class CardEvent(Protocol):
    """A point in the work of a card, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the card has reached it."""

    def synchronize(self) -> None:
        """Wait until the card has reached it."""


def event_on(device: torch.device) -> CardEvent | None:
    """The end of the work that a card has been given on the current stream; None for the CPU, which waits itself."""
    if device.type != "cuda":
        return None
    import torch

    event: Any = cast(Any, torch.cuda.Event)()
    event.record()
    return cast(CardEvent, event)


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

        from normless.state import has_generators

        self.device = device
        self._dtype = dtype
        self._inside = ExitStack()
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

    @contextmanager
    def running(self) -> Iterator[None]:
        """In the body this thread has the state of the run, except while it hands over; then the stream is free."""
        before, _OF_THREAD.state = getattr(_OF_THREAD, "state", None), self
        self._inside.enter_context(self.entered())
        try:
            yield
        finally:
            self._inside.close()
            _OF_THREAD.state = before
            self.release()

    @contextmanager
    def left(self) -> Iterator[None]:
        """In the body this thread has the state that it had before the run."""
        self._inside.close()
        try:
            yield
        finally:
            self._inside.enter_context(self.entered())

    @borrowing
    def entered(self) -> Iterator[None]:
        """In the body torch has the state of the run; what it had before is restored, and the run's state kept.

        Other threads, such as one with another training, wait.
        """
        import torch

        from normless_lab.train._execution import tensor_cores

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


class ClosedError(BaseException):
    """Ends a run that is closed while others go on."""


class Turn:
    """A function in a thread of its own, one of several that go on in turns.

    Attributes:
        pauses: those of the run that it executes, if it is one that can be saved.
        waits_for: the event on the card before which it has nothing to do, or None.
        is_over: whether the function has ended.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.pauses: Pauses | None = None
        self.waits_for: CardEvent | None = None
        self.is_over = False
        self._call = function, args
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_closed = False
        self._goes_on, self._has_handed_over = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="normless run", daemon=True)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its card."""
        return self.waits_for is not None and not self.waits_for.query()

    def go_on(self) -> bool:
        """Let the function go on until it hands over; return whether it has ended."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._goes_on.release()
        self._has_handed_over.acquire()
        return self.is_over

    def result(self) -> Any:
        """Return what the function returned, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result

    def close(self) -> None:
        """End the function where it has handed over."""
        self._is_closed = True
        if self._thread.ident is not None and not self.is_over:
            self.go_on()

    def hand_over(self, event: CardEvent | None) -> None:
        """Wait in the thread of the function for its next turn."""
        self.waits_for = event
        self._has_handed_over.release()
        self._goes_on.acquire()
        if self._is_closed:
            raise ClosedError

    def _run(self) -> None:
        _OF_THREAD.turn = self
        function, args = self._call
        try:
            self._result = function(*args)
        except BaseException as error:
            self._error = error
        finally:
            self.is_over = True
            self._has_handed_over.release()


def current_turn() -> Turn | None:
    """Return the turn of this thread; None if it does not take turns."""
    return getattr(_OF_THREAD, "turn", None)


def hand_over(event: CardEvent | None = None) -> None:
    """Let the other runs of this process go on, and return after an event on the card."""
    turn, state = current_turn(), getattr(_OF_THREAD, "state", None)
    with nullcontext() if state is None or turn is None else state.left():
        if turn is not None:
            turn.hand_over(event)
        elif event is not None:
            event.synchronize()
