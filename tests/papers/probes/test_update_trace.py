"""Theorem 3's terms against the paper's closed form, the measured step, and autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normless_papers.fixup.updates import RectifiedNetwork, closed_form
from normless_papers.probes.update_trace import update_terms


@settings(max_examples=12, deadline=None)
@given(blocks=st.integers(1, 4), width=st.integers(1, 7), layers=st.integers(1, 3))
def test_fixup_theorem_3_terms_are_the_closed_form(blocks: int, width: int, layers: int) -> None:
    """fixup/theorem-3: J_l^i of a fully connected residual network, general Jacobians against the paper's formula."""
    torch.manual_seed(blocks + 10 * width)
    network = RectifiedNetwork(blocks, width, layers).double()
    x = torch.randn(1, width).double()
    with torch.no_grad():
        expected = closed_form(network, x[0])
    found = {term.parameter: term.matrix for term in update_terms(network, x)}
    assert set(found) == set(expected)
    for name, matrix in found.items():
        assert torch.allclose(matrix, expected[name], rtol=1e-9, atol=1e-12), name


def test_fixup_theorem_3_the_rest_is_of_second_order() -> None:
    """fixup/theorem-3: measured change + η Σ J ∂l/∂z is quartered when η is halved."""
    network = RectifiedNetwork(5, 16, 2, gain=0.5).double()
    x, y = torch.randn(1, 16).double(), torch.tensor([2])
    z = network(x)
    loss = F.cross_entropy(z, y)
    (by_logits,) = torch.autograd.grad(loss, z, retain_graph=True)
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    first_order = -torch.stack([term.matrix for term in update_terms(network, x)]).sum(0) @ by_logits[0]
    errors = []
    for rate in (1e-4, 5e-5, 2.5e-5):
        moved = {
            name: parameter - rate * gradient
            for (name, parameter), gradient in zip(network.named_parameters(), gradients, strict=True)
        }
        change = torch.func.functional_call(network, moved, (x,)) - z
        errors.append((change[0] - rate * first_order).norm().item())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.05)


def test_a_network_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        update_terms(nn.ReLU(), torch.randn(2, 3))
