"""Stochastic gradient descent in double precision with a learning rate that may be a tensor on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import SGD


class CapturableSGD(SGD):
    """`torch.optim.SGD` with momentum, without dampening, and with a step for CUDA graphs at any precision.

        m ← μ·m + (g + λ·w),  w ← w − η·m, or by Nesterov w ← w − η·((g + λ·w) + μ·m)

    with the rate η a number or a tensor of one element on the device of the weights. torch's fused kernel reads a
    tensor in single precision, and its other kernels bring a tensor to the host.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step; closures are not supported."""
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not trained:
                continue
            gradients: Any = [parameter.grad for parameter in trained]
            updates: Any = torch._foreach_add(gradients, trained, alpha=group["weight_decay"])
            if group["momentum"]:
                moments = [self.state[parameter]["momentum_buffer"] for parameter in trained]
                torch._foreach_mul_(moments, group["momentum"])
                torch._foreach_add_(moments, updates)
                ahead = group["nesterov"]
                updates = torch._foreach_add(updates, moments, alpha=group["momentum"]) if ahead else moments
            torch._foreach_sub_(trained, torch._foreach_mul(updates, group["lr"]))
