"""The step that a graph can hold in double precision, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normless_lab.train._optimizers import CapturableSGD


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("rate", [0.05, torch.tensor(0.05, dtype=torch.float64)])
def test_steps_are_those_of_torch(momentum: float, nesterov: bool, rate: float | Tensor) -> None:
    weights = [nn.Parameter(torch.randn(3, 4, dtype=torch.float64)) for _ in range(4)]
    others = [nn.Parameter(weight.detach().clone()) for weight in weights]

    def groups(parameters: list[nn.Parameter]) -> list[dict[str, object]]:
        return [{"params": parameters[:2], "weight_decay": 0.1}, {"params": parameters[2:], "lr": 0.3}]

    ours = CapturableSGD(groups(weights), lr=rate, momentum=momentum, nesterov=nesterov)
    theirs = torch.optim.SGD(groups(others), lr=0.05, momentum=momentum, nesterov=nesterov)
    for weight in weights:
        ours.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    for step in range(4):
        for weight, other in zip(weights, others, strict=True):
            # The last gets its first gradient late.
            weight.grad = None if step == 0 and weight is weights[-1] else torch.randn_like(weight)
            other.grad = None if weight.grad is None else weight.grad.clone()
        ours.step()
        theirs.step()
    for weight, other in zip(weights, others, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-14, atol=1e-14)
