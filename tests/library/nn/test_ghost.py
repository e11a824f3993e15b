"""Ghost batch norm against torch's own batch norm applied to each ghost batch."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normless.nn import GhostBatchNorm1d, GhostBatchNorm2d

SHAPES = {"1d": (), "1d_sequence": (5,), "2d": (3, 4)}
KINDS = {"1d": GhostBatchNorm1d, "1d_sequence": GhostBatchNorm1d, "2d": GhostBatchNorm2d}


def randomized(norm: nn.Module) -> nn.Module:
    """The layer in float64 with γ, β and running statistics that are not their defaults."""
    norm.double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn_like(parameter))
        norm.running_mean.copy_(torch.randn_like(norm.running_mean))
        norm.running_var.copy_(torch.rand_like(norm.running_var) + 0.5)
    return norm


def torch_twin(norm: nn.Module) -> nn.Module:
    """Torch's own layer in the same state."""
    kind = nn.BatchNorm2d if isinstance(norm, nn.BatchNorm2d) else nn.BatchNorm1d
    twin = kind(norm.num_features, eps=norm.eps, momentum=norm.momentum, affine=norm.affine).double()
    twin.load_state_dict(norm.state_dict())
    return twin.train(norm.training)


def sizes(batch: int, ghost: int) -> list[int]:
    """⌈B/g⌉ ghost batches, the larger ones first, differing by one example at most."""
    count = ceil(batch / ghost)
    return [batch // count + (index < batch % count) for index in range(count)]


def assert_same(norm: nn.Module, x: Tensor, reference, parameters: list[Tensor]) -> None:
    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    actual, expected = norm(leaf), reference(other)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    direction = torch.randn_like(expected)
    found = torch.autograd.grad(actual, [leaf, *norm.parameters()], direction)
    wanted = torch.autograd.grad(expected, [other, *parameters], direction)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    case=st.sampled_from(sorted(SHAPES)),
    batch=st.integers(2, 23),
    ghost=st.integers(2, 12),
    channels=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_every_ghost_batch_is_normalized_by_torchs_layer_alone(
    case: str, batch: int, ghost: int, channels: int, seed: int
) -> None:
    torch.manual_seed(seed)
    parts = sizes(batch, ghost)
    assert sum(parts) == batch
    if min(parts) < 2 and case == "1d":
        return
    norm = randomized(KINDS[case](channels, ghost_size=ghost))
    twin = torch_twin(norm)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    x = torch.randn(batch, channels, *SHAPES[case], dtype=torch.float64) * 3 + 1

    def reference(x: Tensor) -> Tensor:
        return torch.cat([twin(part) for part in x.split(parts)])

    assert_same(norm, x, reference, list(twin.parameters()))

    flat = [part.transpose(0, 1).flatten(1) for part in x.split(parts)]
    mean = torch.stack([part.mean(1) for part in flat]).mean(0)
    variance = torch.stack([part.var(1, correction=1) for part in flat]).mean(0)
    torch.testing.assert_close(norm.running_mean, 0.9 * before["running_mean"] + 0.1 * mean)
    torch.testing.assert_close(norm.running_var, 0.9 * before["running_var"] + 0.1 * variance)
    assert norm.num_batches_tracked.item() == before["num_batches_tracked"].item() + 1


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("batch", [2, 7, 8])
def test_a_batch_of_at_most_one_ghost_batch_is_torchs_layer_exactly(case: str, batch: int) -> None:
    torch.manual_seed(0)
    norm = randomized(KINDS[case](3, ghost_size=8))
    twin = torch_twin(norm)
    x = torch.randn(batch, 3, *SHAPES[case], dtype=torch.float64)
    assert torch.equal(norm(x), twin(x))
    for name, value in twin.state_dict().items():
        assert torch.equal(norm.state_dict()[name], value), name


@pytest.mark.parametrize("case", SHAPES)
def test_evaluation_is_torchs(case: str) -> None:
    torch.manual_seed(0)
    norm = randomized(KINDS[case](3, ghost_size=2)).eval()
    twin = torch_twin(norm)
    x = torch.randn(9, 3, *SHAPES[case], dtype=torch.float64)
    assert torch.equal(norm(x), twin(x))


def test_bf16_autocast_keeps_the_statistics_in_float32() -> None:
    torch.manual_seed(0)
    norm = GhostBatchNorm2d(2, ghost_size=4)
    x = torch.randn(8, 2, 5, 5).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = norm(x)
    halves = x.float().split(4)
    expected = torch.cat([nn.BatchNorm2d(2)(half) for half in halves])
    torch.testing.assert_close(y.float(), expected, rtol=0.02, atol=0.02)
    mean = torch.stack([half.mean((0, 2, 3)) for half in halves]).mean(0)
    variance = torch.stack([half.var((0, 2, 3)) for half in halves]).mean(0)
    assert norm.running_mean.dtype is torch.float32
    torch.testing.assert_close(norm.running_mean, 0.1 * mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * variance, rtol=1e-5, atol=1e-6)
