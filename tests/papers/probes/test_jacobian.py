"""Spectra of Jacobians, against torch's own Jacobians and closed forms."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from normless_papers.probes.jacobian import jacobian_spectrum


def spectra(table: pd.DataFrame) -> Tensor:
    rows = [group["singular_value"].to_numpy(float) for _, group in table.groupby("spectrum")]
    return torch.from_numpy(np.stack(rows))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_spectra_are_those_of_the_jacobian_by_torch(training: bool, chunk: int) -> None:
    convolutions = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True)
    network = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(3 * 16, 5)).double()
    inputs = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    found = jacobian_spectrum(network, inputs, training=training, chunk=chunk)
    jacobian = torch.autograd.functional.jacobian(network.train(training), inputs).reshape(3, 5, 3, 32)
    whole, alone = jacobian.reshape(1, 15, -1), torch.stack([jacobian[b, :, b] for b in range(3)])
    assert found["examples"].eq(3 if training else 1).all()
    torch.testing.assert_close(spectra(found), torch.linalg.svdvals(whole if training else alone))
    np.testing.assert_allclose(found["squared"], found["singular_value"] ** 2)


def test_a_batch_norm_stops_the_mean_and_the_scale_of_every_channel() -> None:
    """Its Jacobian is (I - 11ᵀ/n - x̂x̂ᵀ/n)/σ per channel: two values of 0 (to ε) and n - 2 of 1/σ."""
    inputs = torch.randn(12, 3, dtype=torch.float64) * torch.tensor([1.0, 2.0, 4.0])
    table = jacobian_spectrum(nn.BatchNorm1d(3, eps=1e-14), inputs, training=True)
    sigma = inputs.std(dim=0, correction=0)
    expected = torch.cat([torch.zeros(6), (1 / sigma).repeat_interleave(10)]).sort(descending=True).values
    torch.testing.assert_close(spectra(table)[0], expected, rtol=1e-9, atol=1e-11)
    alone = jacobian_spectrum(nn.BatchNorm1d(3, eps=1e-14), inputs)
    torch.testing.assert_close(spectra(alone), torch.ones(12, 3, dtype=torch.float64))
