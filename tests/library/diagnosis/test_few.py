"""A few examples show that a batch can be fitted; moments of tensors."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import normless as nl
from normless.diagnosis.examination import Examination
from normless.diagnosis.few import few_of
from normless.diagnosis.tape import moments


@given(
    st.integers(2, 40), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.floats(-1e4, 1e4), st.integers(0, 9)
)
def test_moments_are_those_of_torch(examples: int, shape: list[int], offset: float, seed: int) -> None:
    x = torch.randn(examples, *shape, generator=torch.Generator().manual_seed(seed)) + offset
    found, wide = moments(x, examples), x.double()
    between, whole = float(wide.var(0, correction=0).mean()), float(wide.var(correction=0))
    assert found.second == pytest.approx(float(wide.square().mean()))
    assert found.deviation == pytest.approx(between**0.5)
    assert found.spread == pytest.approx(between / whole)


class Counted(nn.Module):
    """Counts the examples of its passes, and of those of its copies."""

    passes: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append(len(x))
        result: Tensor = self.layers(x)
        return result


def separable(examples: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(examples, 6, generator=torch.Generator().manual_seed(0))
    return x, x[:, :4].argmax(1)


def test_an_eighth_of_the_batch_is_fitted_in_place_of_it() -> None:
    torch.manual_seed(0)
    network = Counted()
    exam = Examination(network, *separable(64), F.cross_entropy, None)
    part = few_of(exam)
    assert part is not None
    assert torch.equal(part.inputs, exam.inputs[:8])
    assert torch.equal(part.passed.logits, exam.passed.logits[:8])
    network.passes.clear()
    assert nl.diagnose(network, separable(64)).healthy
    # The map, the recorded pass and single passes in evaluation read the batch; steps read the part.
    assert network.passes.count(64) < 8
    assert 8 in network.passes
