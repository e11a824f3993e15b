"""Partial batch norm against the closed form γ · (x − μ) / √(σ² + ε) + β with any of its parts left out."""

from __future__ import annotations

from copy import deepcopy
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from normless.nn import PartialBatchNorm1d, PartialBatchNorm2d

SUBSETS = [
    dict(zip(("mean", "variance", "gamma", "beta"), used, strict=True)) for used in product((True, False), repeat=4)
]
IDS = ["-".join(name for name, used in subset.items() if used) or "nothing" for subset in SUBSETS]
CASES = [(PartialBatchNorm1d, (9, 3)), (PartialBatchNorm1d, (5, 3, 4)), (PartialBatchNorm2d, (4, 3, 5, 2))]
CASE_IDS = ["1d", "1d_sequence", "2d"]


def randomized(norm: nn.Module) -> nn.Module:
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
    norm = randomized(kind(3, **subset))
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
    norm = randomized(kind(3, **subset)).eval()
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
    norm = randomized(kind(3, momentum=momentum, eps=1e-3))
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
