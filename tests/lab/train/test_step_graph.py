"""What keeps a training step from being captured as a CUDA graph; the capture itself is tested on a card."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normless_lab.train._step_graph import WARMUP, StepGraph, first_difference, python_state


class Network(nn.Module):
    """A layer whose forward pass also does something else."""

    def __init__(self, also: Callable[[Network], object] = lambda network: None) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(2))
        self.calls, self.history = 0, list[float]()
        self.also = also

    def forward(self, x: Tensor) -> Tensor:
        self.also(self)
        return self.layer(x)


def _count(network: Network) -> None:
    network.calls += 1


def _rebind(network: Network) -> None:
    network.seen = network.seen + 1


# What a pass changes that a replay of its graph would not; of the others, a graph repeats them as they are.
CHANGES: dict[str, tuple[Callable[[Network], object], str]] = {
    "a counter": (_count, "calls"),
    "a list": (lambda network: network.history.append(1.0), "history"),
    "a buffer that is assigned anew": (_rebind, "seen"),
    "Python's random numbers": (lambda _: random.random(), "Python's random numbers"),
    "NumPy's random numbers": (lambda _: np.random.rand(), "NumPy's random numbers"),  # noqa: NPY002
    "torch's random numbers on the CPU": (lambda _: torch.rand(()), "torch's random numbers"),
    "nothing": (lambda _: None, ""),
    "a buffer in place": (lambda network: network.seen.add_(1), ""),
    "weights in place": (lambda network: network.layer.weight.data.mul_(0.5), ""),
}


def _step(network: Network) -> Callable[[object], Tensor]:
    return lambda batch: network(batch[0]).sum()


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_replay_would_not_change_is_named(what: str) -> None:
    also, name = CHANGES[what]
    network = Network(also)
    before = python_state(network)
    network(torch.ones(1, 3))
    found = first_difference(before, python_state(network))
    assert name in (found or "")
    assert (found is None) == (name == "")


def test_a_step_that_changes_python_state_runs_as_it_is_and_says_why() -> None:
    network = Network(_count)
    graph = StepGraph(_step(network), network, torch.optim.SGD(network.parameters(), lr=0.1))
    batch = (torch.ones(1, 3),)
    graph(batch)
    with pytest.warns(UserWarning, match=r"not captured.*calls"):
        graph(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2 * WARMUP):
            graph(batch)
    assert network.calls == 2 + 2 * WARMUP
    assert graph.in_words.startswith("not captured: it changes the attribute")
