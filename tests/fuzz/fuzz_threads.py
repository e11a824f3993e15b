"""Calls in several threads at once, and calls made again and again: what they return, give back and keep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from borrowed import live_tensors, of_process
from fuzz_calls import prepared
from hypothesis import strategies as st
from torch import Tensor, nn

from normless._internal.exclusive import exclusive

# Seconds for which a thread may wait for the others.
LIMIT = 100.0
AGAIN = 3


def together(calls: st.SearchStrategy[tuple[Any, ...]]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Descriptions of two or three calls at once."""
    return st.lists(calls, min_size=2, max_size=3).map(lambda several: ("threads", *several))


def again(calls: st.SearchStrategy[tuple[Any, ...]]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Descriptions of a call that is repeated."""
    return calls.map(lambda call: ("leaks", call))


def carry_out_together(calls: tuple[tuple[Any, ...], ...]) -> None:
    """Make calls alone and then at once; they return or raise the same, and the process is as before."""
    alone = [_end(_made(call, 0)) for call in calls]
    # Two seeds tell whether a call draws from the generator that the threads share.
    steady = [one == _end(_made(call, 1)) for one, call in zip(alone, calls, strict=True)]
    works = [_made(call, 0) for call in calls]
    ends: list[Any] = [None] * len(works)

    def carry_out(number: int) -> None:
        ends[number] = _end(works[number])

    before = of_process()
    threads = [threading.Thread(target=carry_out, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    assert of_process() == before, "something of the process was not given back"
    assert exclusive.lock.acquire(timeout=0), "the lock was not given back"
    exclusive.lock.release()
    for number, (one, expected) in enumerate(zip(ends, alone, strict=True)):
        same = one == expected if steady[number] else one[0] == expected[0]
        assert same, f"call {number} ended in {one[:2]!r}, alone in {expected[:2]!r}"


def carry_out_again(call: tuple[Any, ...]) -> None:
    """Make a call several times; after the first times it keeps no further tensors."""
    kept = []
    for _ in range(AGAIN):
        _end(_made(call, 0))
        kept.append(live_tensors())
    assert kept[-1] <= kept[-2], f"a call kept {kept[-1] - kept[-2]} tensors"


def _made(call: tuple[Any, ...], seed: int) -> Callable[[], Any]:
    """A call whose network and inputs are there, so that threads do not share the generator for them."""
    work = prepared(call)
    torch.manual_seed(seed)
    return work


def _end(work: Callable[[], Any]) -> tuple[str, Any]:
    """How a call ended, with the type of its error, and what it returned or said."""
    try:
        return "returned", _digest(work())
    except Exception as error:
        return type(error).__name__, str(error)


def _digest(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return type(value).__name__, {name: _digest(tensor) for name, tensor in value.state_dict().items()}
    if isinstance(value, Tensor):
        return None if value.is_meta else str(value.double().tolist())
    if isinstance(value, (tuple, list)):
        return [_digest(member) for member in value]
    return value.report() if hasattr(value, "report") else type(value).__name__


CARRIED_OUT: dict[str, Callable[..., None]] = {
    "threads": lambda *calls: carry_out_together(calls),
    "leaks": carry_out_again,
}
