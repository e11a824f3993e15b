"""Calls of several threads return what one thread gets, and give back what they borrow on every way out."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from borrowed import of_process
from matrix.case import changed, state_of
from streams_of_networks import Network as Residual
from torch import Tensor, nn
from torch.fx import config as fx_config

import normless as nl
from normless._internal import exclusive as module
from normless._internal.exclusive import Exclusive, borrowing, exclusive
from normless._internal.state import quiet

THREADS = 6
# Seconds after which a thread that waits is a failure.
LIMIT = 60.0


class Network(Residual):
    """Residual blocks that no declaration states, so that each map is an export; dropout ahead of the head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Dropout(dropout), self.head)


class Undecided(Network):
    """Returns no tensor."""

    def forward(self, x: Tensor) -> Any:
        return str(super().forward(x))


def images(seed: int = 0) -> Tensor:
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


BATCH = images(), torch.arange(4) % 3


def once_in_process() -> dict[str, Any]:
    """What the process has once and calls borrow, with the random generators."""
    return of_process() | {
        "precision": torch.get_float32_matmul_precision(),
        "kernels": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "tracing": getattr(fx_config, "do_not_emit_stack_traces", None),
        "built in": (max, min),
        "torch's numbers": torch.get_rng_state().tolist(),
        "Python's numbers": random.getstate(),
        "NumPy's numbers": str(np.random.get_state()),  # noqa: NPY002
    }


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Import what the first calls import: libraries draw random numbers and add filters of warnings then."""
    str(nl.residual_map(SHARED, images()))
    nl.diagnose(SHARED, BATCH, trial_steps=0)


@pytest.fixture(autouse=True)
def _given_back() -> Iterator[None]:
    before = once_in_process()
    yield
    after = once_in_process()
    assert [name for name in before if before[name] != after[name]] == []
    assert is_free()


def is_free() -> bool:
    """Whether another thread gets the lock."""

    def taken() -> bool:
        if exclusive.lock.acquire(timeout=5):
            exclusive.lock.release()
            return True
        return False

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(taken).result()


@borrowing
def alone() -> Iterator[None]:
    """Keep other threads out of the library."""
    yield


def digest(value: Any) -> Any:
    """Return what two calls must agree in."""
    if isinstance(value, nn.Module):
        return {name: tensor.tolist() for name, tensor in value.state_dict().items()}, str(value)
    if isinstance(value, (tuple, list)):
        return [digest(member) for member in value]
    return str(value)


torch.manual_seed(0)
SHARED, DROPPING = Network(), Network(dropout=0.5)
CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "residual_map": lambda net: nl.residual_map(net, images()),
    "convert": lambda net: nl.convert(net, "skipinit", images()),
    "convert with a batch": lambda net: nl.convert(net, "dyt(alpha=search)", images()),
    "plan": lambda net: nl.plan(net, "fixup", images()),
    "probe": lambda net: nl.probe(net, BATCH, ("signal", "gradients")).signal.to_csv(),
    "mixes_examples": lambda net: nl.mixes_examples(net, images()),
    "fold": lambda net: nl.fold(net, images())[0],
    "fuse_for_inference": lambda net: nl.fuse_for_inference(net, images()),
    "param_groups": lambda net: [
        sorted(group) for group in nl.param_groups(net, images(), lr=0.1, weight_decay=1e-4)
    ],
    "diagnose": lambda net: nl.diagnose(net, BATCH, trial_steps=2).to_dict(),
    "diagnose a network with dropout": lambda _: nl.diagnose(DROPPING, BATCH, trial_steps=1).to_dict(),
}
LONG = ("convert with a batch", "diagnose")


@pytest.mark.parametrize("repeated", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_every_function_gets_in_threads_what_one_thread_gets(repeated: int) -> None:
    names = [name for name in CALLS if repeated > 1 or name not in LONG]
    alone = {name: digest(CALLS[name](SHARED)) for name in names}
    before = state_of(SHARED)
    jobs = [(name, SHARED) for name in names] * repeated + [(name, deepcopy(SHARED)) for name in names[:-1]]
    random.Random(0).shuffle(jobs)
    with ThreadPoolExecutor(THREADS) as pool:
        made = [*pool.map(lambda job: digest(CALLS[job[0]](job[1])), jobs)]
    assert [name for (name, _), one in zip(jobs, made, strict=True) if one != alone[name]] == []
    assert changed(before, state_of(SHARED)) == []


def test_refused_calls_in_threads() -> None:
    def refused(number: int) -> str:
        model, inputs = (Undecided(), images()) if number % 2 else (Network(), images()[:, :2])
        with pytest.raises(nl.NormlessError) as caught:
            nl.convert(model, "skipinit", inputs)
        assert type(model) in (Undecided, Network)
        return type(caught.value).__name__

    with torch.random.fork_rng(devices=[]), ThreadPoolExecutor(THREADS) as pool:
        names = [*pool.map(refused, range(6))]
    assert names == ["InputsError", "UnresolvedStructureError"] * 3


def test_a_loss_may_call_the_library() -> None:
    depths = []

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        depths.append(nl.residual_map(SHARED, images()).depth)
        return F.cross_entropy(output, targets)

    nl.probe(deepcopy(SHARED), BATCH, ("gradients",), loss=loss)
    assert depths == [2]


def test_networks_that_compute_in_several_threads() -> None:
    fused = nl.fuse_for_inference(deepcopy(SHARED).eval(), images())
    converted = nl.convert(SHARED, "fixup", images()).eval()
    for network in (fused, converted):
        with torch.no_grad():
            alone = [network(images(seed)) for seed in range(12)]

        def computed(seed: int, network: nn.Module = network) -> Tensor:
            with torch.no_grad():
                return network(images(seed))  # type: ignore[no-any-return]

        with ThreadPoolExecutor(THREADS) as pool:
            for one, expected in zip(pool.map(computed, range(12)), alone, strict=True):
                assert torch.equal(one, expected)


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[list[str]]:
    """Repeat something in another thread during the body; yield the errors that it raises."""
    errors: list[str] = []
    ends = threading.Event()

    def repeat() -> None:
        while not ends.is_set():
            try:
                work()
            except Exception as error:
                errors.append(repr(error))
            time.sleep(0)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield errors
    finally:
        ends.set()
        thread.join()


def test_what_another_thread_prints_and_warns_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    seen, said = 0, 0

    def speak() -> None:
        nonlocal seen, said
        sys.stderr.write("a line of another thread\n")
        said += 1
        # Warnings are errors in tests.
        with suppress(UserWarning):
            warnings.warn("of another thread", stacklevel=2)
            return
        seen += 1

    with beside(speak) as errors:
        nl.convert(SHARED, "skipinit", images())
        nl.diagnose(SHARED, BATCH, trial_steps=1)
    assert not errors
    assert seen == said
    assert capsys.readouterr().err.count("a line of another thread") == said


def test_filters_of_another_thread_are_its_own() -> None:
    def record() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            time.sleep(0.001)
            warnings.warn("one", stacklevel=2)
        assert len(caught) == 1

    before = [*warnings.filters]
    with beside(record):
        for _ in range(50):
            with quiet("nothing"):
                time.sleep(0.0005)
    warnings.filters[:] = [one for one in warnings.filters if one in before]  # type: ignore[index]
    # An entry that was in the copy of another thread applies to nothing any more.
    with pytest.warns(UserWarning, match="seen"):
        warnings.warn("seen", stacklevel=1)


def test_quiet_ignores_by_the_beginning_of_a_text() -> None:
    with quiet("The first|The second"):
        warnings.warn("The second of them", stacklevel=1)
        with pytest.warns(UserWarning, match="another"):
            warnings.warn("another", stacklevel=1)


class Interrupting(Network):
    """Interrupts the pass that is called, as Ctrl-C in it would."""

    def forward(self, x: Tensor) -> Tensor:
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["convert", "probe", "mixes_examples", "diagnose"])
def test_an_interrupted_call_gives_everything_back(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        model = Interrupting()
    before, attributes = state_of(model), [*vars(model)]
    with pytest.raises(KeyboardInterrupt):
        CALLS[name](model)
    assert changed(before, state_of(model)) == []
    assert [*vars(model)] == attributes
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(nl.residual_map, SHARED, images()).result(LIMIT).depth == 2


class AlarmError(BaseException):
    """Raised by a signal, as KeyboardInterrupt is."""


def interrupted(call: Callable[[], object], after: float) -> bool:
    """Call something that a signal interrupts after so many seconds; return whether it did."""

    def ring(*_: object) -> None:
        raise AlarmError

    former = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        call()
    except AlarmError:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    return False


@pytest.mark.parametrize("to_itself", [True, False])
def test_a_call_that_is_interrupted_while_it_waits(to_itself: bool) -> None:
    """A signal to the waiting thread ends its wait; one to another thread is raised as soon as it has the lock."""
    holds, ends = threading.Event(), threading.Event()

    @exclusive
    def hold() -> None:
        holds.set()
        if not to_itself:
            time.sleep(0.05)
            signal.pthread_kill(threading.get_ident(), signal.SIGALRM)
        ends.wait(0.1)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(hold)
        assert holds.wait(LIMIT)
        assert interrupted(lambda: nl.residual_map(SHARED, images()), 0.03 if to_itself else 0.0)
        ends.set()
        other.result(LIMIT)
        assert pool.submit(nl.residual_map, SHARED, images()).result(LIMIT).depth == 2
    assert is_free()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("inside", [False, True])
def test_a_process_forked_while_another_thread_is_inside(inside: bool) -> None:
    """`inside`: the thread that forks is inside a call itself, as in a callback."""
    holds, ends = threading.Event(), threading.Event()

    class Slow(Network):
        def forward(self, x: Tensor) -> Tensor:
            holds.set()
            ends.wait(0.2)
            return super().forward(x)

    with torch.random.fork_rng(devices=[]):
        slow = Slow()
    thread = threading.Thread(target=lambda: nl.residual_map(slow, images()))
    # Python seeds its own generator anew in a child.
    state = once_in_process() | {"Python's numbers": None}
    with alone() if inside else nullcontext():
        thread.start()
        assert inside or holds.wait(LIMIT)
        process = os.fork()
    if process == 0:
        # Threads of the child are not kept out either.
        with ThreadPoolExecutor(1) as pool:
            works = pool.submit(nl.residual_map, SHARED, images()).result(LIMIT).depth == 2
        os._exit(
            0
            if works
            and nl.plan(SHARED, "fixup", images())
            and once_in_process() | {"Python's numbers": None} == state
            else 1
        )
    ends.set()
    thread.join(LIMIT)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def test_a_thread_that_waits_long_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.02)
    with caplog.at_level(logging.WARNING, "normless"), ThreadPoolExecutor(1, "the other") as pool:
        with alone():
            waits = pool.submit(nl.residual_map, SHARED, images())
            while not caplog.records:
                time.sleep(0.01)
        assert waits.result(LIMIT).depth == 2
    assert "the other" in caplog.text
    assert threading.current_thread().name in caplog.text


def test_threads_get_the_lock_in_turn() -> None:
    lock, turns, ready = Exclusive(), list[int](), threading.Barrier(3)

    @lock
    def turn(number: int) -> None:
        turns.append(number)
        time.sleep(0.0005)

    def take(number: int) -> None:
        ready.wait()
        for _ in range(50):
            turn(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Nobody takes it three times while others wait; the last turns are those of one thread alone.
    shared = turns[:90]
    assert max(len({*shared[i : i + 6]}) for i in range(len(shared) - 6)) == 3
    assert all(len({*shared[i : i + 6]}) > 1 for i in range(len(shared) - 6))


def test_a_manager_that_borrows_has_the_lock_from_its_first_line_to_its_last() -> None:
    owned: list[bool] = []

    @borrowing
    def borrows() -> Iterator[int]:
        owned.append(exclusive.is_own)
        try:
            yield 1
        finally:
            owned.append(exclusive.is_own)

    with suppress(KeyError), borrows() as value:
        raise KeyError(value)
    assert owned == [True, True]
    assert not exclusive.is_own


def test_neighbours_of_files_that_threads_execute(tmp_path: Path) -> None:
    names = [f"network_{number}" for number in range(8)]
    for number, name in enumerate(names):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "beside.py").write_text(f"import time\ntime.sleep(0.01)\nWIDTH = {number + 2}\n")
        text = "import torch, beside\ndef made():\n    return torch.nn.Linear(beside.WIDTH, 2)\n"
        (folder / "own.py").write_text(text)
    with torch.random.fork_rng(devices=[]), ThreadPoolExecutor(THREADS) as pool:
        made = pool.map(nl.models.build_model, [f"{tmp_path / name / 'own.py'}:made" for name in names])
        assert [one.in_features for one in made] == [*range(2, 10)]
