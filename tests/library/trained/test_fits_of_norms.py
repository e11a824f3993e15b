"""The fits of affine maps and pointwise functions, against closed forms and regressions of torch."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from normless.affine._fitting import fit_pointwise, matching


def test_an_affine_map_gets_mean_and_deviation_of_each_channel_and_is_finite_for_constant_ones() -> None:
    z = torch.randn(5, 300)
    y = -2 * z + torch.randn(5, 300) + torch.arange(5.0)[:, None]
    a, c = matching(z, y)
    made = a[:, None] * z.double() + c[:, None]
    torch.testing.assert_close(made.mean(1), y.double().mean(1))
    torch.testing.assert_close(made.std(1), y.double().std(1))
    assert (a < 0).all()
    z, y = torch.randn(3, 100), torch.randn(3, 100)
    z[0], y[1] = 3.7, -1.5
    z[2], y[2] = 2.0, 5.0
    a, c = matching(z, y)
    assert a.tolist() == [1, 0, 1]
    torch.testing.assert_close(a * z.double().mean(1) + c, y.double().mean(1))


def test_alpha_is_the_best_of_many_regressions() -> None:
    """Of positions of different scale, whose norm no line computes."""
    x = torch.randn(6, 500).double() * torch.randn(500).exp()
    y = F.layer_norm(x.T, (6,)).T

    def error(alpha: float) -> float:
        total = 0.0
        for row, target in zip(torch.tanh(alpha * x), y, strict=True):
            matrix = torch.stack([row, torch.ones_like(row)], 1)
            solution = torch.linalg.lstsq(matrix, target[:, None]).solution
            total += float((matrix @ solution - target[:, None]).square().sum())
        return total

    alpha, gamma, beta = fit_pointwise(x, y, torch.tanh)
    least = min(error(own) for own in torch.logspace(-2, 1, 60).tolist())
    made = gamma[:, None] * torch.tanh(alpha * x) + beta[:, None]
    assert float((made - y).square().sum()) <= 1.001 * least
