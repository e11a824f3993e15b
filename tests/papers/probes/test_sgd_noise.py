"""The gradients of single examples, from which the noise of minibatch steps is predicted."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from normless.models import wide_resnet
from normless_papers.probes.sgd_noise import per_example_gradients


def images(examples: int) -> tuple[Tensor, Tensor]:
    return torch.randn(examples, 3, 8, 8), torch.randint(10, (examples,))


def test_per_example_gradients_are_those_of_backward_passes_one_by_one() -> None:
    network, (inputs, targets) = wide_resnet(10, 1), images(5)
    next(network.parameters()).requires_grad_(False)
    found = per_example_gradients(network, inputs, targets, F.cross_entropy, chunk=2)
    network.eval()
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for index, gradient in enumerate(found):
        loss = F.cross_entropy(network(inputs[index : index + 1]), targets[index : index + 1])
        expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, trainable)])
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)
