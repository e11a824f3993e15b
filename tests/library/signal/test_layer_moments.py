"""Means and variances after single layers, compared with samples of activations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from normless.nn.standardized import scaled_std
from normless.signal.moments import Moments, activated, dropped, normalized
from normless.signal.quadrature import rectified, rectified_sum
from normless.signal.weights import weighted_moments

MANY = 40_000


def moments_of(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(0, keepdim=True), x.var(0, correction=0, keepdim=True)


def random_moments(*shape: int) -> Moments:
    return Moments(
        torch.randn(1, *shape).double(), torch.rand(1, *shape).double() + 0.1, torch.zeros(1, *shape).double()
    )


def samples(moments: Moments, count: int = MANY) -> Tensor:
    return moments.mean + moments.variance.sqrt() * torch.randn(count, *moments.mean.shape[1:], dtype=torch.float64)


WEIGHTS = {
    "linear": lambda: nn.Linear(6, 5),
    "conv": lambda: nn.Conv2d(6, 4, 3, stride=2, padding=1, groups=2),
    "circular": lambda: nn.Conv2d(6, 4, 3, padding=1, padding_mode="circular", bias=False),
    "standardized": lambda: scaled_std(nn.Conv2d(6, 4, 3, padding=1)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(6, 5)),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weight_layers_of_independent_inputs_are_exact(kind: str) -> None:
    module = WEIGHTS[kind]()
    moments = random_moments(6) if "Linear" in type(module).__name__ else random_moments(6, 5, 5)
    result = weighted_moments(module, moments.stacked())
    assert result is not None
    with torch.no_grad():
        mean, variance = moments_of(module.double()(samples(moments)))
    torch.testing.assert_close(result[:1], mean, rtol=0.05, atol=0.05)
    torch.testing.assert_close(result[1:2], variance, rtol=0.06, atol=0.01)


def test_a_standardized_weight_removes_a_common_mean() -> None:
    """Rows sum to zero, so a mean that all inputs share has no effect."""
    module = scaled_std(nn.Linear(200, 50))
    nn.init.zeros_(module.bias)
    constant = Moments(torch.full((1, 200), 3.0).double(), torch.ones(1, 200).double(), torch.zeros(1, 200).double())
    result = weighted_moments(module, constant.stacked())
    assert result is not None
    assert result[0].abs().max() < 1e-5
    torch.testing.assert_close(result[1], torch.ones(50).double(), rtol=1e-5, atol=0)


def test_a_layer_that_does_more_than_multiply_once_is_unknown() -> None:
    class Twice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Adapted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + F.linear(x, self.weight)

    for module in (Twice(4, 4), Adapted(4, 4), nn.ConvTranspose2d(4, 4, 3), nn.Bilinear(4, 4, 4)):
        assert weighted_moments(module, random_moments(4, 4, 4).stacked()) is None


@pytest.mark.parametrize("function", [nn.ReLU(), F.relu, nn.GELU(), nn.LeakyReLU(0.2), nn.PReLU(3), F.silu])
def test_activations_of_normal_inputs(function: object) -> None:
    moments = random_moments(3, 4)
    result = activated(function, moments, 10)  # type: ignore[arg-type]
    double = function.double() if isinstance(function, nn.Module) else function
    with torch.no_grad():
        mean, variance = moments_of(double(samples(moments)))  # type: ignore[operator]
    torch.testing.assert_close(result.mean, mean, rtol=0.02, atol=0.02)
    torch.testing.assert_close(result.variance, variance, rtol=0.05, atol=0.01)
    torch.testing.assert_close(result.noise, result.variance / 10)


@settings(max_examples=25, deadline=None)
@given(st.floats(-2, 2), st.floats(0.1, 3), st.floats(-1, 1), st.floats(0, 3))
def test_a_rectified_sum_of_a_rectified_number(mean: float, deviation: float, shift: float, other: float) -> None:
    generator = torch.Generator().manual_seed(1)
    z, y = torch.randn(2, 200_000, generator=generator, dtype=torch.float64)
    part = (mean + deviation * z).clamp_min(0)
    first, second = rectified(*(torch.tensor([v], dtype=torch.float64) for v in (mean, deviation**2)))
    result = rectified_sum(first, second, *(torch.tensor([v], dtype=torch.float64) for v in (shift, other**2)))
    total = (part + shift + other * y).clamp_min(0)
    scale = float(total.square().mean())
    assert float(result[1]) == pytest.approx(scale, rel=0.03, abs=0.01)
    assert float(result[0]) == pytest.approx(float(total.mean()), abs=0.02 * (1 + scale**0.5))


NORMS = {
    "batch norm": lambda: nn.BatchNorm2d(6),
    "group norm": lambda: nn.GroupNorm(3, 6),
    "layer norm over all": lambda: nn.LayerNorm((6, 20, 20)),
    "rms norm": lambda: nn.RMSNorm((6, 20, 20)),
}


@pytest.mark.parametrize("kind", NORMS)
def test_norms_of_inputs_with_known_moments(kind: str) -> None:
    norm = NORMS[kind]()
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    moments = random_moments(6, 20, 20)
    with torch.no_grad():
        mean, variance = moments_of(norm.double()(samples(moments, 2000)))
        result = normalized(norm, moments, torch.Size((2000, 6, 20, 20)), True)
    assert result is not None
    torch.testing.assert_close(result.mean, mean, rtol=0, atol=0.15)
    torch.testing.assert_close(result.variance, variance, rtol=0.2, atol=0.02)
    assert float((result.variance / variance).mean()) == pytest.approx(1, abs=0.01)


def test_a_norm_makes_the_second_moment_known_again() -> None:
    batch = normalized(nn.BatchNorm1d(4), None, torch.Size((8, 4)), True)
    layer = normalized(nn.LayerNorm(4), None, torch.Size((8, 5, 4)), True)
    assert batch is not None
    assert layer is not None
    assert torch.equal(batch.variance, torch.ones(1, 4).double())
    assert torch.equal(layer.second, torch.ones(1, 5, 4).double())
    assert batch.split
    assert not layer.split
    uneven = nn.LayerNorm(4)
    nn.init.uniform_(uneven.weight)
    with torch.no_grad():
        assert normalized(uneven, None, torch.Size((8, 5, 4)), True) is None
    assert normalized(nn.RMSNorm(4), None, torch.Size((8, 4)), True) is None
    assert normalized(nn.BatchNorm1d(4), None, torch.Size((8, 4)), False) is None


def test_an_untrained_batch_norm_in_evaluation_divides_by_its_running_deviation() -> None:
    norm = nn.BatchNorm1d(4)
    assert norm.running_var is not None
    norm.running_var.fill_(4.0)
    moments = random_moments(4)
    result = normalized(norm, moments, torch.Size((8, 4)), False)
    assert result is not None
    torch.testing.assert_close(result.second, moments.second / 4, rtol=1e-4, atol=0)


def test_dropout_keeps_the_mean_and_raises_the_second_moment() -> None:
    moments = random_moments(5)
    result = dropped(nn.Dropout(0.25), moments, 4)
    assert result is not None
    torch.testing.assert_close(result.mean, moments.mean)
    torch.testing.assert_close(result.second, moments.second / 0.75)
    assert dropped(nn.Identity(), moments, 4) is None
