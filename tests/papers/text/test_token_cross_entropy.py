"""The loss per token, one token at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normless_lab.train.objective import token_cross_entropy


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(2, 6),
    st.floats(0, 0.9),
    st.integers(0, 10**6),
    st.integers(0, 1),
)
def test_every_token_counts_alike_and_padding_not(
    batch: int, length: int, vocabulary: int, smoothing: float, seed: int, padding: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, length, vocabulary, generator=generator, dtype=torch.float64)
    labels = torch.randint(vocabulary, (batch, length), generator=generator)
    labels[0, 0] = 1 - padding
    losses = []
    for row in range(batch):
        for place in range(length):
            label = int(labels[row, place])
            if label == padding:
                continue
            normalizer = math.log(sum(math.exp(value) for value in logits[row, place].tolist()))
            terms = [normalizer - value for value in logits[row, place].tolist()]
            losses.append((1 - smoothing) * terms[label] + smoothing * sum(terms) / vocabulary)
    options = {"label_smoothing": smoothing, "padding": padding}
    mean, total = (token_cross_entropy(logits, labels, reduction=kind, **options) for kind in ("mean", "sum"))  # type: ignore[arg-type]
    assert mean.item() == pytest.approx(sum(losses) / len(losses))
    assert total.item() == pytest.approx(sum(losses))


def test_padding_gets_no_gradient() -> None:
    logits = torch.randn(1, 3, 5, requires_grad=True)
    token_cross_entropy(logits, torch.tensor([[4, 2, 0]])).backward()
    assert logits.grad is not None
    assert logits.grad[0, 2].abs().sum() == 0
    assert (logits.grad[0, :2].abs().sum(1) > 0).all()
