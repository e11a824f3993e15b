"""Networks of one structure that take their steps together: small networks leave a core idle between operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tasks_by_kind import Part
from torch import Tensor, nn
from torch.func import functional_call, vmap


class SideBySide:
    """The networks, their parameters and buffers parts of larger tensors, one along the first axis for each.

    The parameters that the networks keep share memory with these, and have the gradients, so each network can have an
    optimizer of its own. Buffers are the networks' own again after `write_back`.
    """

    def __init__(self, networks: Sequence[nn.Module], loss: Callable[..., Tensor]) -> None:
        self.networks = list(networks)
        self.loss = loss
        every = [dict(network.named_parameters()) for network in networks]
        self.parameters: dict[str, Tensor] = {}
        for name in every[0]:
            stacked = torch.stack([parameters[name].detach() for parameters in every]).requires_grad_()
            stacked.grad = torch.zeros_like(stacked)
            self.parameters[name] = stacked
            for row, gradient, parameters in zip(stacked.detach(), stacked.grad, every, strict=True):
                parameters[name].data, parameters[name].grad = row, gradient
        buffers = [dict(network.named_buffers()) for network in networks]
        self.buffers = {name: torch.stack([own[name] for own in buffers]) for name in buffers[0]}
        # Parameters are given from outside: this one only has the code.
        self.code = networks[0]

    def backward(self, batch: Part) -> list[float]:
        """The loss of every network on its part of a batch; leaves the gradients."""
        torch._foreach_zero_([parameter.grad for parameter in self.parameters.values()])  # type: ignore[arg-type]
        losses = vmap(self._loss, randomness="different")(self.parameters, self.buffers, *batch)
        losses.sum().backward()
        return [float(loss) for loss in losses.detach()]

    def _loss(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        inputs: tuple[Tensor, ...],
        targets: tuple[Tensor, ...],
    ) -> Tensor:
        return self.loss(functional_call(self.code, (parameters, buffers), inputs), *targets)

    def write_back(self) -> None:
        """Give every network its buffers."""
        for index, network in enumerate(self.networks):
            for name, buffer in network.named_buffers():
                buffer.copy_(self.buffers[name][index])
