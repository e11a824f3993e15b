"""Several backward passes for one step: micro-batches whose gradients are zeroed, and passes for something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD
from watched import batch, mlp

import normless as nl

pytestmark = pytest.mark.filterwarnings("ignore::normless.WatchWarning")
Loop = Callable[[nn.Module, Callable[[Tensor], Tensor]], None]


def micro_batches(size: int, often: bool) -> Loop:
    """Accumulate the gradients of micro-batches, and zero them for every micro-batch or once per step."""

    def run(model: nn.Module, watched: Callable[[Tensor], Tensor]) -> None:
        optimizer = SGD(model.parameters(), 0.1)
        for _ in range(20):
            for part in range(size):
                if often or part == 0:
                    optimizer.zero_grad()
                x, y = batch()
                watched(F.cross_entropy(model(x), y) / size).backward()
            optimizer.step()

    return run


def adversarial(model: nn.Module, watched: Callable[[Tensor], Tensor]) -> None:
    """Look for inputs of a high loss by four passes whose gradients of the weights are thrown away."""
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(20):
        x, y = batch()
        for _ in range(4):
            x = x.detach().requires_grad_()
            F.cross_entropy(model(x), y).backward()
            assert x.grad is not None
            x = x + 0.01 * x.grad.sign()
            model.zero_grad()
        watched(F.cross_entropy(model(x.detach()), y)).backward()
        optimizer.step()


def closures(model: nn.Module, watched: Callable[[Tensor], Tensor]) -> None:
    """Let a line search calculate the gradient several times per step."""
    optimizer = LBFGS(model.parameters(), 0.1, max_iter=4, line_search_fn="strong_wolfe")
    x, y = batch()

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = watched(F.cross_entropy(model(x), y))
        value.backward()
        return value

    for _ in range(10):
        optimizer.step(closure)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (micro_batches(3, often=True), True),
        (micro_batches(4, often=True), True),
        (micro_batches(4, often=False), False),
        (micro_batches(1, often=True), False),
        (adversarial, False),
        (closures, False),
    ],
)
def test_passes_whose_gradients_are_zeroed_before_the_step(run: Loop, said: bool) -> None:
    model = mlp()
    torch.manual_seed(1)
    with nl.watch(model) as watch:

        def watched(loss: Tensor) -> Tensor:
            watch.loss(loss)
            return loss

        run(model, watched)
    found = [known for known in watch.findings if known.kind == "cleared_gradients"]
    assert bool(found) is said
    assert all("zeroed before the step" in known.title for known in found)
