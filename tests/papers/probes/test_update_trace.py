"""Theorem 3's terms against the paper's closed form, the measured step, and autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normless.models import resnet_cifar
from normless_papers.probes.update_trace import update_terms, update_trace_table


class PaperBlock(nn.Module):
    """f(x) = x + relu(W_m … relu(W_1 x)), as theorem 3 has it."""

    def __init__(self, width: int, layers: int, gain: float) -> None:
        super().__init__()
        self.weights = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        for weight in self.weights:
            nn.init.normal_(weight.weight, std=gain * (2 / width) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for weight in self.weights:
            h = torch.relu(weight(h))
        return x + h


class PaperNetwork(nn.Module):
    def __init__(self, blocks: int, width: int, layers: int, classes: int = 4, gain: float = 1.0) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(PaperBlock(width, layers, gain) for _ in range(blocks)))
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(x))
        return out


def closed_form(network: PaperNetwork, x: Tensor) -> dict[str, Tensor]:
    """J_l^i = ‖F_l^(i−)‖² (∂f/∂x_l)ᵀ F_l^(i+) (F_l^(i+))ᵀ (∂f/∂x_l), by multiplying matrices."""
    terms, stream = {}, [x]
    for block in network.blocks:
        stream.append(block(stream[-1]))
    later = network.head.weight.T  # ∂f/∂x_L, shape (width, classes)
    terms["head.weight"] = stream[-1].square().sum() * torch.eye(len(network.head.weight)).to(x)
    for index in reversed(range(len(network.blocks))):
        block, h = network.blocks[index], stream[index]
        before, masks = [h], []
        for weight in block.weights:
            masks.append((weight(h) > 0).to(x))
            h = torch.relu(weight(h))
            before.append(h)
        behind = torch.diag(masks[-1])  # F^(m+) = D
        for i in reversed(range(len(masks))):
            gram = later.T @ behind @ behind.T @ later
            terms[f"blocks.{index}.weights.{i}.weight"] = before[i].square().sum() * gram
            behind = behind @ block.weights[i].weight
            if i:
                behind = behind @ torch.diag(masks[i - 1])
        later = later + behind.T @ later
    return terms


@settings(max_examples=12, deadline=None)
@given(blocks=st.integers(1, 4), width=st.integers(1, 7), layers=st.integers(1, 3))
def test_fixup_theorem_3_terms_are_the_closed_form(blocks: int, width: int, layers: int) -> None:
    """fixup/theorem-3: J_l^i of a fully connected residual network, general Jacobians against the paper's formula."""
    torch.manual_seed(blocks + 10 * width)
    network = PaperNetwork(blocks, width, layers).double()
    x = torch.randn(1, width).double()
    with torch.no_grad():
        expected = closed_form(network, x[0])
    found = {term.parameter: term.matrix for term in update_terms(network, x)}
    assert set(found) == set(expected)
    for name, matrix in found.items():
        assert torch.allclose(matrix, expected[name], rtol=1e-9, atol=1e-12), name


def test_fixup_theorem_3_the_rest_is_of_second_order() -> None:
    """fixup/theorem-3: measured change + η Σ J ∂l/∂z is quartered when η is halved."""
    network = PaperNetwork(5, 16, 2, gain=0.5).double()
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


def test_everything_is_as_before() -> None:
    network = resnet_cifar(8).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    update_trace_table(network, torch.randn(2, 3, 8, 8, generator=torch.Generator()), torch.tensor([0, 1]))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not network.training
    with pytest.raises(ValueError, match="no trainable parameter"):
        update_terms(nn.ReLU(), torch.randn(2, 3))
