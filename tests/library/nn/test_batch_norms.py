"""Ghost, alternating and partial batch norm against torch's own layer, loops and the closed form."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import product
from math import ceil

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from normless.nn import AlternatingBatchNorm2d, GhostBatchNorm2d, PartialBatchNorm2d
from normless.nn._batch_norms import AlternatingBatchNorm1d, GhostBatchNorm1d, PartialBatchNorm1d

SHAPES = {"vectors": (9, 3), "sequences": (5, 3, 4), "images": (4, 3, 5, 2)}
PARTS = ("mean", "variance", "gamma", "beta")
SUBSETS = [dict(zip(PARTS, used, strict=True)) for used in product((True, False), repeat=4)]
IDS = ["-".join(name for name, used in subset.items() if used) or "nothing" for subset in SUBSETS]


def randomized(norm: nn.Module) -> nn.Module:
    """The layer in float64 with γ, β and running statistics that are not their defaults."""
    norm.double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn_like(parameter))
        norm.running_mean.copy_(torch.randn_like(norm.running_mean))
        norm.running_var.copy_(torch.rand_like(norm.running_var) + 0.5)
    return norm


def twin_of(norm: nn.Module) -> nn.Module:
    """Torch's own layer in the same state."""
    kind = nn.BatchNorm2d if isinstance(norm, nn.BatchNorm2d) else nn.BatchNorm1d
    twin = kind(norm.num_features, eps=norm.eps, momentum=norm.momentum).double()
    twin.load_state_dict(norm.state_dict(), strict=False)
    return twin.train(norm.training)


def batch(shape: tuple[int, ...], index: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64) * (1 + index) + index


def assert_same(norm: nn.Module, x: Tensor, reference: Callable[[Tensor], Tensor], parameters: list[Tensor]) -> None:
    """Outputs and the gradients of inputs and parameters are those of the reference."""
    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    actual, expected = norm(leaf), reference(other)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    direction = torch.randn_like(expected)
    found = torch.autograd.grad(actual, [leaf, *norm.parameters()], direction)
    wanted = torch.autograd.grad(expected, [other, *parameters], direction)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def assert_same_state(norm: nn.Module, twin: nn.Module) -> None:
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name], value, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    case=st.sampled_from(sorted(SHAPES)),
    size=st.integers(2, 23),
    ghost=st.integers(2, 12),
    seed=st.integers(0, 2**31),
)
def test_every_ghost_batch_is_normalized_by_torchs_layer_alone(case: str, size: int, ghost: int, seed: int) -> None:
    """⌈B/g⌉ ghost batches, the larger ones first, differing by one example at most; statistics are their means."""
    torch.manual_seed(seed)
    count = ceil(size / ghost)
    parts = [size // count + (index < size % count) for index in range(count)]
    if min(parts) < 2 and case == "vectors":
        return
    kind = GhostBatchNorm2d if case == "images" else GhostBatchNorm1d
    norm = randomized(kind(3, ghost_size=ghost))
    twin, before = twin_of(norm), deepcopy(norm.state_dict())
    x = torch.randn(size, *SHAPES[case][1:], dtype=torch.float64) * 3 + 1
    assert_same(norm, x, lambda x: torch.cat([twin(part) for part in x.split(parts)]), list(twin.parameters()))
    flat = [part.transpose(0, 1).flatten(1) for part in x.split(parts)]
    mean = torch.stack([part.mean(1) for part in flat]).mean(0)
    variance = torch.stack([part.var(1, correction=1) for part in flat]).mean(0)
    torch.testing.assert_close(norm.running_mean, 0.9 * before["running_mean"] + 0.1 * mean)
    torch.testing.assert_close(norm.running_var, 0.9 * before["running_var"] + 0.1 * variance)
    assert norm.num_batches_tracked.item() == before["num_batches_tracked"].item() + 1
    assert torch.equal(norm.eval()(x), twin_of(norm)(x))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("case", SHAPES)
def test_odd_batches_are_torchs_and_even_batches_reuse_their_constants(case: str, momentum: float | None) -> None:
    shape = SHAPES[case]
    norm = (AlternatingBatchNorm2d if case == "images" else AlternatingBatchNorm1d)(3, momentum=momentum).double()
    nn.init.normal_(norm.weight)
    twin, axes, broadcast = twin_of(norm), [0, *range(2, len(shape))], (1, 3, *[1] * (len(shape) - 2))
    for index in range(5):
        x = batch(shape, index)
        if index % 2 == 0:
            assert_same(norm, x, twin, list(twin.parameters()))
            mean, deviation = x.mean(axes).view(broadcast), (x.var(axes, correction=0) + 1e-5).sqrt().view(broadcast)
        else:

            def reuse(x: Tensor, mean: Tensor = mean, deviation: Tensor = deviation) -> Tensor:
                return (x - mean) / deviation * twin.weight.view(broadcast) + twin.bias.view(broadcast)

            assert_same(norm, x, reuse, list(twin.parameters()))
        assert_same_state(norm, twin)
    torch.testing.assert_close(norm.eval()(x), twin.eval()(x), rtol=1e-12, atol=1e-12)


def test_evaluation_takes_no_turn_and_the_turn_survives_a_state_dict() -> None:
    norm = AlternatingBatchNorm2d(3).double()
    twin = twin_of(norm)
    first, second, third = (batch(SHAPES["images"], index) for index in range(3))
    assert_same(norm, first, twin, list(twin.parameters()))
    state = deepcopy(norm.state_dict())
    torch.testing.assert_close(norm.eval()(second), twin.eval()(second), rtol=1e-12, atol=1e-12)
    assert_same_state(norm, twin)
    other = AlternatingBatchNorm2d(3).double()
    other.load_state_dict(state)
    reused = norm.train()(second)
    assert torch.equal(other(second), reused)
    assert not torch.allclose(reused, nn.BatchNorm2d(3).double()(second))
    torch.testing.assert_close(norm(third), twin.train()(third), rtol=1e-10, atol=1e-10)


def closed_form(x: Tensor, mean: Tensor, variance: Tensor, norm: nn.Module, subset: dict[str, bool]) -> Tensor:
    """γ · (x - μ) / √(σ² + ε) + β without the parts that are left out, channel by channel."""
    columns = []
    for channel in range(x.shape[1]):
        y = x[:, channel]
        y = y - mean[channel] if subset["mean"] else y
        y = y / torch.sqrt(variance[channel] + norm.eps) if subset["variance"] else y
        y = norm.weight[channel] * y if subset["gamma"] else y
        columns.append(y + norm.bias[channel] if subset["beta"] else y)
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("subset", SUBSETS, ids=IDS)
def test_any_part_may_be_left_out(case: str, subset: dict[str, bool]) -> None:
    """The closed form with its gradients in training; running statistics move as torch's; evaluation uses them."""
    norm = randomized((PartialBatchNorm2d if case == "images" else PartialBatchNorm1d)(3, **subset))
    twin, x = twin_of(norm), batch(SHAPES[case], 1)

    def training(x: Tensor) -> Tensor:
        flat = x.transpose(0, 1).flatten(1)
        mean = flat.sum(1) / flat.shape[1]
        return closed_form(x, mean, ((flat - mean[:, None]) ** 2).sum(1) / flat.shape[1], norm, subset)

    assert_same(norm, x, training, list(norm.parameters()))
    if subset["mean"] or subset["variance"]:
        twin(x)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            assert torch.equal(getattr(norm, name), getattr(twin, name)), name
    before = deepcopy(norm)
    expected = closed_form(x, norm.running_mean, norm.running_var, norm, subset)
    torch.testing.assert_close(norm.eval()(x), expected, rtol=1e-10, atol=1e-10)
    assert_same_state(norm, before)
