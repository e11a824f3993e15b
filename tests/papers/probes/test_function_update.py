"""The size of an SGD step in function space, against rate and depth."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.models import resnet_cifar
from normless_papers.probes.function_update import function_update_table


@pytest.mark.parametrize("training", [True, False])
def test_the_limit_is_autograds_jacobian_times_the_gradient(training: bool) -> None:
    network = resnet_cifar(8).double().train(not training)
    inputs, targets = torch.randn(2, 3, 8, 8).double(), torch.tensor([0, 1])
    table = function_update_table(network, inputs, targets, rates=(1e-7, 1e-3), training=training)
    network.train(training)
    parameters = dict(network.named_parameters())

    def forward(held: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(network, held, (inputs,))

    gradients = torch.autograd.grad(F.cross_entropy(forward(parameters), targets), list(parameters.values()))
    ahead = {k: v.detach() + 1e-6 * g for (k, v), g in zip(parameters.items(), gradients, strict=True)}
    behind = {k: v.detach() - 1e-6 * g for (k, v), g in zip(parameters.items(), gradients, strict=True)}
    slope = (forward(ahead) - forward(behind)).detach() / 2e-6
    expected = slope.square().sum(1).mean().sqrt().item()
    assert table["predicted_update_per_rate"].to_numpy() == pytest.approx(expected, rel=1e-5)
    assert table["update_per_rate"][0] == pytest.approx(expected, rel=1e-3)
    assert table["rate"].tolist() == [1e-7, 1e-3]
    assert table["update_norm"][1] == pytest.approx(1e-3 * table["update_per_rate"][1])


def test_a_linear_network_moves_by_the_closed_form() -> None:
    """z = Wx: one step on one example changes z by −η‖x‖²(p − y), and the loss follows SGD itself."""
    network = nn.Linear(5, 3, bias=False).double()
    x, y = torch.randn(1, 5).double(), torch.tensor([1])
    table = function_update_table(network, x, y, rates=(0.1,), steps=(0, 2), step_rate=0.3)
    error = (network(x).softmax(1) - F.one_hot(y, 3)).detach()
    assert table["update_per_rate"][0] == pytest.approx(float(x.square().sum() * error.norm()))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
    assert table["loss"][1] == pytest.approx(F.cross_entropy(network(x), y).item())
