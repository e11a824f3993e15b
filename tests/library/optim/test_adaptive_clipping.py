"""Adaptive gradient clipping: closed forms, a loop over units, and as a part of an optimizer's step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gallery import ROWS
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import normless as nl
from normless.optim import clip_in_step


def parameter(weight: list[list[float]] | list[float], gradient: list[list[float]] | list[float]) -> nn.Parameter:
    made = nn.Parameter(torch.tensor(weight))
    made.grad = torch.tensor(gradient)
    return made


INF = float("inf")


@pytest.mark.parametrize(
    ("weight", "gradient", "clip", "clipped"),
    [
        # ‖w‖ = 5, 5 and 0; λ = 0.1 allows 0.5, 0.5 and λ·ε = 1e-4.
        ([[3.0, 4], [0, 5], [0, 0]], [[3.0, 4], [0.3, 0.4], [0, 2]], 0.1, [[0.3, 0.4], [0.3, 0.4], [0, 1e-4]]),
        ([[1.0, 0.0]], [[0.0, 0.0]], 0.01, [[0.0, 0.0]]),
        # An infinite row does not touch the others.
        ([[1.0, 0.0], [1.0, 0.0]], [[INF, 1.0], [0.001, 0.0]], 0.01, [[float("nan"), 0.0], [0.001, 0.0]]),
    ],
)
def test_rows_are_clipped_each_by_its_own_norm(weight: Any, gradient: Any, clip: float, clipped: Any) -> None:
    p = parameter(weight, gradient)
    nl.optim.adaptive_gradient_clipping([p], clip)
    torch.testing.assert_close(p.grad, torch.tensor(clipped), equal_nan=True)


def units(x: Tensor) -> list[Tensor]:
    return list(x) if x.dim() > 1 else [x]


shapes = st.lists(st.integers(1, 4), min_size=0, max_size=5).map(tuple)


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(0, 2**20), st.floats(1e-3, 1), st.floats(1e-4, 1), st.floats(1e-3, 1e3))
def test_any_shape(shape: tuple[int, ...], seed: int, clip: float, eps: float, size: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    p = nn.Parameter(torch.randn(shape, generator=draw, dtype=torch.float64))
    p.grad = size * torch.randn(shape, generator=draw, dtype=torch.float64)
    before = p.grad.clone()
    nl.optim.adaptive_gradient_clipping([p], clip, eps)
    for w, g, clipped in zip(units(p.detach()), units(before), units(p.grad), strict=True):
        limit = clip * max(w.square().sum().sqrt().item(), eps)
        norm = g.square().sum().sqrt().item()
        torch.testing.assert_close(clipped, g * min(1, limit / norm), rtol=1e-12, atol=0)
        assert clipped.norm().item() <= limit * (1 + 1e-12)
        if norm < limit:
            assert torch.equal(clipped, g)
    once = p.grad.clone()
    nl.optim.adaptive_gradient_clipping([p], clip, eps)
    torch.testing.assert_close(p.grad, once, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("name", "scheme", "heads"), [("ManyHeads", "as_written", ()), ("CifarResNet", "nf_resnet", ("fc.",))]
)
def test_everything_but_what_the_outputs_are_read_from_is_clipped(
    name: str, scheme: str, heads: tuple[str, ...]
) -> None:
    inputs, _ = ROWS[name].example()
    model = nl.convert(ROWS[name].network(), scheme, *inputs)
    heads = heads or tuple(f"{path}." for path in ROWS[name].heads or ())
    seen: dict[str, float] = {}

    class Noting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            named = [(key, one.grad) for key, one in model.named_parameters()]
            seen.update((key, float(one.norm())) for key, one in named if one is not None)

    def stepped() -> set[str]:
        """The parameters whose gradients of ones are left."""
        for one in model.parameters():
            one.grad = torch.ones_like(one)
        optimizer.step()
        return {key for key, one in model.named_parameters() if seen[key] == float(torch.ones_like(one).norm())}

    optimizer = Noting(model.parameters(), lr=0.1)
    handle = clip_in_step(optimizer, model, *inputs, clip=1e-6)
    assert stepped() == {key for key in seen if key.startswith(heads)}
    handle.remove()
    assert stepped() == {*seen}
