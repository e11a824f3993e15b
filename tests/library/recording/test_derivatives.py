"""Forward code that takes derivatives is mapped, converted and measured as what it differentiates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl


class Potential(nn.Module):
    """One residual block; a number for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.a, self.b = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.b(torch.tanh(self.a(self.norm(h))))
        return self.out(h).squeeze(-1)  # type: ignore[no-any-return]


Derivative = Callable[[Potential, Tensor], Tensor]


def grad(f: Potential, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    return torch.autograd.grad([f(x).sum()], [x], create_graph=True)[0]


def backward(f: Potential, x: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    f(x).sum().backward(create_graph=True)  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad


def vmap(f: Potential, x: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.grad(f))(x)


def jacobian(f: Potential, x: Tensor) -> Tensor:
    return torch.func.jacrev(lambda x: f(x).sum())(x)  # type: ignore[no-any-return]


def forward_in(f: Potential, x: Tensor) -> Tensor:
    parts = []
    for direction in torch.eye(4):
        with forward_mode.dual_level():
            dual = forward_mode.make_dual(x, direction.expand_as(x).contiguous())
            parts.append(forward_mode.unpack_dual(f(dual)).tangent)
    return torch.stack(parts, 1)


class Forces(nn.Module):
    def __init__(self, way: Derivative) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.potential, self.way = Potential(), way

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            return self.potential(x), self.way(self.potential, x)


def loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return F.mse_loss(outputs[0], targets) + outputs[1].square().mean()


# torch warns of `backward` with create_graph, and of a copied graph.
pytestmark = pytest.mark.filterwarnings("ignore:Using backward", "ignore:Converting a tensor")
WAYS: tuple[Derivative, ...] = (grad, backward, vmap, jacobian, forward_in)
BATCH = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(6)


@pytest.mark.parametrize("way", WAYS)
def test_the_derivative_of_a_converted_network_is_that_of_its_potential(way: Derivative) -> None:
    net, x = Forces(way), BATCH[0].clone()
    assert {block.name.partition("#")[0] for block in nl.residual_map(net, x).blocks} == {"potential"}
    made = nl.convert(net, "dyt", x)
    assert not x.requires_grad
    assert not any(isinstance(module, nn.LayerNorm) for module in made.modules())
    leaf = BATCH[0].clone().requires_grad_()
    expected = torch.autograd.grad(made.potential(leaf).sum(), leaf)[0]
    torch.testing.assert_close(made(BATCH[0].clone())[1], expected)
    assert len(nl.param_groups(made, lr=0.1, weight_decay=0.1))


@pytest.mark.parametrize("way", WAYS)
def test_networks_with_derivatives_are_measured(way: Derivative) -> None:
    net, batch = Forces(way), (BATCH[0].clone(), BATCH[1])
    assert nl.probe(net, batch, loss=loss).loss == pytest.approx(loss(net(BATCH[0].clone()), BATCH[1]).item())
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    assert not nl.diagnose(net, batch, loss=loss, optimizer=optimizer, trial_steps=2).findings
    assert not nl.diagnose_trained(net, [batch], loss=loss).findings
    if way is not jacobian and way is not backward:
        assert not nl.mixes_examples(net, batch[0])
    assert not batch[0].requires_grad


def test_a_derivative_that_cannot_be_followed_is_refused_with_line_and_part() -> None:
    def everything(f: Potential, x: Tensor) -> Tensor:
        torch.autograd.backward(f(x).sum())
        return x

    with pytest.raises(nl.errors.UnresolvedStructureError, match=r"line \d+ of .*derivative.*alone.*: potential\."):
        nl.residual_map(Forces(everything), BATCH[0])
