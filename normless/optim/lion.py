"""Lion, whose updates are the signs of a mean of gradients (Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT


class Lion(Optimizer):
    """Lion, with weight decay that is decoupled from the gradient.

        w ← w − η·(sign(β₁·m + (1 − β₁)·g) + λ·w),  m ← β₂·m + (1 − β₂)·g

    (Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2). All elements of a parameter move
    by η, so that the rate is 3 to 10 times smaller, and the decay as much larger, than for AdamW (section 5). The
    rate η is a number or a tensor on the device of the weights, so that a step can be captured as a CUDA graph.

    Args:
        params: parameters, or groups such as those of `param_groups`.
        lr: η.
        betas: β₁ and β₂.
        weight_decay: λ.

    Raises:
        ValueError: a value is out of range, or, in a step, a gradient is sparse.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        if not (lr >= 0 and weight_decay >= 0):
            raise ValueError(f"Expected lr and weight_decay of 0 or more, got {lr} and {weight_decay}.")
        if not (len(betas) == 2 and all(0 <= beta < 1 for beta in betas)):
            raise ValueError(f"Expected two betas of 0 or more and below 1, got {betas}.")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "capturable": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; return the value of the closure, if there is one, which computes loss and gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not trained:
                continue
            gradients: Any = [parameter.grad for parameter in trained]
            moments = [self._moment(parameter) for parameter in trained]
            first, second = group["betas"]
            directions = torch._foreach_lerp(moments, gradients, 1 - first)
            torch._foreach_sign_(directions)
            if group["weight_decay"]:
                torch._foreach_add_(directions, trained, alpha=group["weight_decay"])
            torch._foreach_mul_(directions, group["lr"])
            torch._foreach_sub_(trained, directions)
            torch._foreach_lerp_(moments, gradients, 1 - second)
        return loss

    def _moment(self, parameter: Tensor) -> Tensor:
        """Return the mean of gradients of a parameter, 0 at first."""
        state = self.state[parameter]
        if "exp_avg" not in state:
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise ValueError(
                    f"Lion needs dense gradients, but that of a parameter of shape {tuple(parameter.shape)} is "
                    "sparse; build its layer with sparse=False."
                )
            state["exp_avg"] = torch.zeros_like(parameter)
        moment: Tensor = state["exp_avg"]
        return moment
