"""Variants of batch normalization against torch and closed forms."""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from normless.nn import (
    AlternatingBatchNorm1d,
    AlternatingBatchNorm2d,
    FrozenAffine,
    GhostBatchNorm1d,
    GhostBatchNorm2d,
    PartialBatchNorm1d,
    PartialBatchNorm2d,
)

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


SUBSETS = [
    dict(zip(("mean", "variance", "gamma", "beta"), used, strict=True)) for used in product((True, False), repeat=4)
]
IDS = ["-".join(name for name, used in subset.items() if used) or "nothing" for subset in SUBSETS]
CASES = [(PartialBatchNorm1d, (9, 3)), (PartialBatchNorm1d, (5, 3, 4)), (PartialBatchNorm2d, (4, 3, 5, 2))]
CASE_IDS = ["1d", "1d_sequence", "2d"]


def randomized_parts(norm: nn.Module) -> nn.Module:
    norm.double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn_like(parameter))
        norm.running_mean.copy_(torch.randn_like(norm.running_mean))
        norm.running_var.copy_(torch.rand_like(norm.running_var) + 0.5)
    return norm


def closed_form(x: Tensor, mean: Tensor, variance: Tensor, norm: nn.Module, subset: dict[str, bool]) -> Tensor:
    """The equation, element by element over channels."""
    columns = []
    for channel in range(x.shape[1]):
        y = x[:, channel]
        if subset["mean"]:
            y = y - mean[channel]
        if subset["variance"]:
            y = y / torch.sqrt(variance[channel] + norm.eps)
        if subset["gamma"]:
            y = norm.weight[channel] * y
        if subset["beta"]:
            y = y + norm.bias[channel]
        columns.append(y)
    return torch.stack(columns, dim=1)


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    flat = x.transpose(0, 1).flatten(1)
    mean = flat.sum(1) / flat.shape[1]
    return mean, ((flat - mean[:, None]) ** 2).sum(1) / flat.shape[1]


@pytest.mark.parametrize(("kind", "shape"), CASES, ids=CASE_IDS)
@pytest.mark.parametrize("subset", SUBSETS, ids=IDS)
def test_training_equals_the_closed_form_with_its_gradients(kind, shape, subset: dict[str, bool]) -> None:
    torch.manual_seed(0)
    norm = randomized_parts(kind(3, **subset))
    x = (torch.randn(shape, dtype=torch.float64) * 2 + 1).requires_grad_()
    expected = closed_form(x, *batch_statistics(x), norm, subset)
    actual = norm(x)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    direction = torch.randn_like(expected)
    leaves = [x, *norm.parameters()]
    found = torch.autograd.grad(actual, leaves, direction, retain_graph=True)
    wanted = torch.autograd.grad(expected, leaves, direction)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("kind", "shape"), CASES, ids=CASE_IDS)
@pytest.mark.parametrize("subset", SUBSETS, ids=IDS)
def test_evaluation_uses_the_running_statistics(kind, shape, subset: dict[str, bool]) -> None:
    torch.manual_seed(1)
    norm = randomized_parts(kind(3, **subset)).eval()
    before = deepcopy(norm.state_dict())
    x = torch.randn(shape, dtype=torch.float64)
    expected = closed_form(x, norm.running_mean, norm.running_var, norm, subset)
    torch.testing.assert_close(norm(x), expected, rtol=1e-10, atol=1e-10)
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize(("kind", "shape"), CASES, ids=CASE_IDS)
def test_all_parts_are_torchs_batch_norm(kind, shape, momentum: float | None) -> None:
    torch.manual_seed(2)
    norm = randomized_parts(kind(3, momentum=momentum, eps=1e-3))
    torch_kind = nn.BatchNorm2d if issubclass(kind, nn.BatchNorm2d) else nn.BatchNorm1d
    twin = torch_kind(3, momentum=momentum, eps=1e-3).double()
    twin.load_state_dict(norm.state_dict())
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64) * 2 + 1
        leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        one, two = norm(leaf), twin(other)
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)
        direction = torch.randn_like(one)
        found = torch.autograd.grad(one, [leaf, *norm.parameters()], direction)
        wanted = torch.autograd.grad(two, [other, *twin.parameters()], direction)
        for mine, torchs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, torchs, rtol=1e-9, atol=1e-9)
        for name, value in twin.state_dict().items():
            assert torch.equal(norm.state_dict()[name], value), name
    torch.testing.assert_close(norm.eval()(x), twin.eval()(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("subset", [subset for subset in SUBSETS if subset["mean"] or subset["variance"]], ids=str)
def test_running_statistics_move_as_torchs_whatever_the_parts(subset: dict[str, bool]) -> None:
    torch.manual_seed(3)
    norm, twin = PartialBatchNorm2d(3, **subset).double(), nn.BatchNorm2d(3).double()
    x = torch.randn(4, 3, 5, 5, dtype=torch.float64) * 2 + 1
    norm(x)
    twin(x)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(norm, name), getattr(twin, name)), name


def test_without_tracking_evaluation_uses_the_batch() -> None:
    torch.manual_seed(6)
    norm = PartialBatchNorm1d(3, gamma=False, track_running_stats=False)
    twin = nn.BatchNorm1d(3, track_running_stats=False)
    x = torch.randn(8, 3)
    torch.testing.assert_close(norm(x), twin(x))
    torch.testing.assert_close(norm.eval()(x), twin.eval()(x))


ALTERNATING = [
    (AlternatingBatchNorm1d, (9, 3)),
    (AlternatingBatchNorm1d, (5, 3, 4)),
    (AlternatingBatchNorm2d, (4, 3, 5, 2)),
]
ALTERNATING_IDS = ["1d", "1d_sequence", "2d"]


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


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize(("kind", "shape"), ALTERNATING, ids=ALTERNATING_IDS)
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


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 2), (4, 3, 5, 2, 2)])
def test_it_is_a_batch_norm_whose_statistics_stand_still(shape: tuple[int, ...]) -> None:
    x, mean, variance = torch.randn(shape), torch.randn(3), torch.rand(3) + 0.5
    scale = 1 / (variance + 1e-5).sqrt()
    affine = FrozenAffine(scale, -mean * scale)
    expected = F.batch_norm(x, mean, variance, eps=1e-5)
    torch.testing.assert_close(affine(x), expected)
    assert torch.equal(affine.train()(x), affine.eval()(x))


def test_what_comes_behind_keeps_its_name_and_runs_in_order() -> None:
    affine = FrozenAffine(torch.tensor([2.0]), torch.tensor([-1.0]), {"linear": nn.Linear(1, 1), "act": nn.ReLU()})
    nn.init.constant_(affine.linear.weight, -2.0)
    nn.init.constant_(affine.linear.bias, 0.5)
    # 2x − 1 = 3, −1; × −2 + 0.5 = −5.5, 2.5; ReLU.
    torch.testing.assert_close(affine(torch.tensor([[2.0], [0.0]])), torch.tensor([[0.0], [2.5]]))
    assert list(affine.state_dict()) == ["scale", "shift", "linear.weight", "linear.bias"]


def test_nothing_of_it_is_trained_and_the_gradient_passes() -> None:
    affine = FrozenAffine(torch.tensor([2.0, -3.0]), torch.ones(2))
    assert list(affine.parameters()) == []
    x = torch.randn(4, 2, 3, requires_grad=True)
    affine(x).sum().backward()
    assert torch.equal(x.grad, torch.tensor([2.0, -3.0]).reshape(1, 2, 1).expand(4, 2, 3))
