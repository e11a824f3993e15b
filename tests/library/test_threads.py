"""Calls of several threads return what one thread gets, and give back what they borrow on every way out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from borrowed import of_process
from matrix.case import changed, state_of
from streams_of_networks import Network as Residual
from torch import Tensor, nn
from torch.fx import config as fx_config

import normless as nl
from normless.exclusive import exclusive

THREADS = 6


class Network(Residual):
    """Residual blocks that no declaration states, so that each map is an export; dropout ahead of the head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Dropout(dropout), self.head)


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
LONG = ("diagnose",)


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
