"""The distribution of the stream, against closed forms and samples of the same recursion."""

from __future__ import annotations

from math import pi

import pytest
import torch
from torch import nn

from normless.signal import Stream


def test_without_activations_the_variance_adds_up_exactly() -> None:
    stream = Stream.standard()
    for _ in range(50):
        stream = stream.plus(0.04)
    assert stream.variance == pytest.approx(3.0, rel=1e-14)


def test_a_rectified_normal() -> None:
    assert Stream.standard().through(nn.ReLU()).variance == pytest.approx((1 - 1 / pi) / 2, rel=2e-3)
    assert Stream.standard().plus(3).through(nn.ReLU()).variance == pytest.approx(2 * (1 - 1 / pi), rel=2e-3)
    assert Stream.standard().through(nn.Identity()).variance == pytest.approx(1, rel=2e-3)


def test_a_rectified_random_walk_agrees_with_samples() -> None:
    """h ← relu(h + αz) thirty times, with zeros added half-way, on 10⁶ elements."""
    stream, samples = Stream.standard().through(nn.ReLU()), torch.randn(10**6, dtype=torch.float64).relu()
    for step in range(30):
        if step == 15:
            stream = stream.padded(0.5)
            samples = samples * (torch.rand(10**6) < 0.5)
        stream = stream.plus(0.04).through(nn.ReLU())
        samples = (samples + 0.2 * torch.randn(10**6, dtype=torch.float64)).relu()
        assert stream.variance == pytest.approx(samples.var().item(), rel=0.01)
        assert stream.values.mean() == pytest.approx(samples.mean().item(), rel=0.01)
