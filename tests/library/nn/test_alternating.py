"""Alternating batch norm against a loop over batches with torch's layer on the odd ones."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from normless.nn import AlternatingBatchNorm1d, AlternatingBatchNorm2d

CASES = [
    (AlternatingBatchNorm1d, (9, 3)),
    (AlternatingBatchNorm1d, (5, 3, 4)),
    (AlternatingBatchNorm2d, (4, 3, 5, 2)),
]
IDS = ["1d", "1d_sequence", "2d"]


def pair(kind, **arguments) -> tuple[nn.Module, nn.Module]:
    """The layer and torch's own with the same random γ and β."""
    norm = kind(3, **arguments).double()
    torch_kind = nn.BatchNorm2d if issubclass(kind, nn.BatchNorm2d) else nn.BatchNorm1d
    twin = torch_kind(3, **arguments).double()
    with torch.no_grad():
        for mine, torchs in zip(norm.parameters(), twin.parameters(), strict=True):
            mine.copy_(torch.randn_like(mine))
            torchs.copy_(mine)
    return norm, twin


def batch(shape: tuple[int, ...], index: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64) * (1 + index) + index


def assert_same(norm: nn.Module, x: Tensor, reference, parameters: list[Tensor]) -> None:
    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    actual, expected = norm(leaf), reference(other)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    direction = torch.randn_like(expected)
    found = torch.autograd.grad(actual, [leaf, *norm.parameters()], direction)
    wanted = torch.autograd.grad(expected, [other, *parameters], direction)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize(("kind", "shape"), CASES, ids=IDS)
def test_odd_batches_are_torchs_and_even_batches_reuse_their_constants(kind, shape, momentum: float | None) -> None:
    torch.manual_seed(0)
    norm, twin = pair(kind, momentum=momentum)
    axes = [0, *range(2, len(shape))]
    broadcast = (1, 3, *[1] * (len(shape) - 2))
    stored: tuple[Tensor, Tensor] | None = None
    for index in range(7):
        x = batch(shape, index)
        if index % 2 == 0:
            assert_same(norm, x, twin, list(twin.parameters()))
            stored = x.mean(axes), x.var(axes, correction=0)
        else:
            assert stored is not None
            mean, deviation = stored[0].reshape(broadcast), (stored[1] + norm.eps).sqrt().reshape(broadcast)

            def reuse(x: Tensor, mean: Tensor = mean, deviation: Tensor = deviation) -> Tensor:
                return (x - mean) / deviation * twin.weight.reshape(broadcast) + twin.bias.reshape(broadcast)

            assert_same(norm, x, reuse, list(twin.parameters()))
        for name, value in twin.state_dict().items():
            torch.testing.assert_close(norm.state_dict()[name], value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(norm.eval()(x), twin.eval()(x), rtol=1e-12, atol=1e-12)


def test_evaluation_in_between_does_not_take_a_turn() -> None:
    torch.manual_seed(1)
    norm, twin = pair(AlternatingBatchNorm2d)
    first, second, third = (batch((4, 3, 5, 2), index) for index in range(3))
    norm(first)
    twin(first)
    state = deepcopy(norm.state_dict())
    torch.testing.assert_close(norm.eval()(second), twin.eval()(second), rtol=1e-12, atol=1e-12)
    for name, value in norm.state_dict().items():
        assert torch.equal(value, state[name]), name
    norm.train()
    twin.train()
    assert not torch.allclose(norm(second), nn.BatchNorm2d(3).double()(second))
    torch.testing.assert_close(norm(third), twin(third), rtol=1e-10, atol=1e-10)


def test_the_turn_survives_a_state_dict() -> None:
    torch.manual_seed(2)
    norm, _ = pair(AlternatingBatchNorm1d)
    norm(batch((9, 3), 0))
    other = AlternatingBatchNorm1d(3).double()
    other.load_state_dict(norm.state_dict())
    x = batch((9, 3), 1)
    assert torch.equal(other(x), norm(x))
