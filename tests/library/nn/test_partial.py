"""Partial batch norm against the closed form γ · (x − μ) / √(σ² + ε) + β with any of its parts left out."""

from __future__ import annotations

import pickle
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


@pytest.mark.parametrize("subset", SUBSETS, ids=IDS)
def test_only_the_parameters_in_use_exist(subset: dict[str, bool]) -> None:
    names = {name for name, _ in PartialBatchNorm2d(3, **subset).named_parameters()}
    assert names == {name for name, part in (("weight", "gamma"), ("bias", "beta")) if subset[part]}


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


def test_the_mean_alone_centres_and_leaves_the_variance() -> None:
    torch.manual_seed(4)
    norm = PartialBatchNorm2d(3, variance=False, gamma=False, beta=False).double()
    x = torch.randn(6, 3, 4, 4, dtype=torch.float64) * torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1) + 5
    mean, variance = batch_statistics(norm(x))
    torch.testing.assert_close(mean, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(variance, batch_statistics(x)[1])


def test_the_variance_alone_gives_unit_variance_and_keeps_a_mean() -> None:
    torch.manual_seed(5)
    norm = PartialBatchNorm2d(3, mean=False, gamma=False, beta=False, eps=1e-14).double()
    x = torch.randn(6, 3, 4, 4, dtype=torch.float64) * torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1) + 5
    mean, variance = batch_statistics(norm(x))
    before = batch_statistics(x)
    torch.testing.assert_close(variance, torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(mean, before[0] / before[1].sqrt())
    assert (mean > 1).all()


def test_without_tracking_evaluation_uses_the_batch() -> None:
    torch.manual_seed(6)
    norm = PartialBatchNorm1d(3, gamma=False, track_running_stats=False)
    twin = nn.BatchNorm1d(3, track_running_stats=False)
    x = torch.randn(8, 3)
    torch.testing.assert_close(norm(x), twin(x))
    torch.testing.assert_close(norm.eval()(x), twin.eval()(x))


def test_a_wrong_number_of_axes_is_refused_as_torch_does() -> None:
    with pytest.raises(ValueError, match="expected 4D input"):
        PartialBatchNorm2d(3)(torch.randn(8, 3))


def test_the_text_names_the_parts_in_use() -> None:
    assert "parts={μ, β}" in repr(PartialBatchNorm2d(3, variance=False, gamma=False))


@pytest.mark.parametrize("copy", [deepcopy, lambda norm: pickle.loads(pickle.dumps(norm))])
def test_copies_keep_the_parts(copy) -> None:
    norm = randomized(PartialBatchNorm1d(3, mean=False, beta=False))
    x = torch.randn(8, 3, dtype=torch.float64)
    assert torch.equal(copy(norm)(x), norm(x))
    assert set(norm.state_dict()) == {"weight", "running_mean", "running_var", "num_batches_tracked"}


def test_bf16_keeps_the_precision_of_torchs_layer() -> None:
    """Statistics of bf16 activations are taken in float32, as torch's kernel does."""
    torch.manual_seed(7)
    norm, twin = PartialBatchNorm2d(3), nn.BatchNorm2d(3)
    x = (torch.randn(8, 3, 8, 8) + 10).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, expected = norm(x), twin(x)
    torch.testing.assert_close(actual.float(), expected.float(), rtol=0.02, atol=0.02)
