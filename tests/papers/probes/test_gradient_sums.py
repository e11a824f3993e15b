"""Gradient sums of whole networks, ours and others', and that measuring them leaves no trace."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from measured import measured
from torch import Tensor, nn

import normless as nl
from normless.models import wide_resnet
from normless_papers.probes.gradient_sums import GradientSums


def weight_gradients(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(inputs), targets)
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.dim() > 1]
    found = torch.autograd.grad(loss, [parameter for _, parameter in named])
    return {name.removesuffix(".weight"): gradient for (name, _), gradient in zip(named, found, strict=True)}


@pytest.mark.parametrize("scheme", ["batch_norm", "none", "zeroinit(multiplier=False, dropout=0)"])
def test_every_layer_has_the_gradient_of_autograd(scheme: str) -> None:
    model = nl.convert(wide_resnet(10, 1), scheme).train()
    inputs, targets = torch.randn(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 4])
    exact = weight_gradients(model, inputs, targets)
    table = measured(GradientSums(), model, inputs, targets)
    assert tuple(table.columns) == GradientSums.columns
    assert set(table["layer"]) == set(exact)
    assert table["order"].tolist() == list(range(1, len(exact) + 1))
    for row in table.to_dict(orient="records"):
        gradient = exact[row["layer"]]
        count = row["examples"] * row["positions"]
        assert row["parameters"] == gradient.numel()
        assert row["abs_sum"] == pytest.approx(float(gradient.abs().mean()) / count, rel=1e-3)
        assert row["predicted_for_random_signs"] == pytest.approx(count**-0.5)
        assert 0 <= row["abs_sum"] <= row["sum_b_abs_sum_xy"] * 1.0001
        assert row["abs_sum"] <= row["sum_xy_abs_sum_b"] * 1.0001
        assert max(row["sum_b_abs_sum_xy"], row["sum_xy_abs_sum_b"]) <= row["sum_abs"] * 1.0001
        assert row["input_independence"] == pytest.approx(row["abs_sum"] / row["sum_abs"])


def test_summands_of_random_signs_have_the_predicted_ratio() -> None:
    """Products of two normals have E|d| = 2/π and deviation 1, so that |Σd|/Σ|d| is √(2/π)/(2/π) · 1/√N."""

    class Random(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(40, 30)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    coefficients = torch.randn(400, 30)
    table = measured(GradientSums(), Random(), torch.randn(400, 40), coefficients, loss=lambda y, t: (y * t).sum())
    ratio = table["input_independence"].iloc[0] / table["predicted_for_random_signs"].iloc[0]
    assert ratio == pytest.approx(np.sqrt(np.pi / 2), rel=0.05)


def test_a_layer_that_runs_twice_is_told_apart() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(torch.relu(self.linear(x)))

    model, inputs, targets = Twice(), torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    table = measured(GradientSums(), model, inputs, targets)
    assert table["call"].tolist() == [0, 1]
    assert table["order"].tolist() == [1, 2]
