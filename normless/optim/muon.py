"""Muon for the hidden matrices of a network and AdamW for all other parameters, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import AdamW, Optimizer

OF_MATRICES: tuple[Any, ...] = tuple(filter(None, [getattr(torch.optim, "Muon", None)]))
"""`torch.optim.Muon`, which torch has since 2.9."""


class Muon(Optimizer):
    """`torch.optim.Muon` on the groups of hidden matrices, `torch.optim.AdamW` on all others.

    Muon moves a matrix along the matrix with orthonormal rows or columns that is nearest to its momentum (Jordan et
    al. 2024). Lookup tables, the first and last layers, kernels of convolutions, gains and biases are trained by
    AdamW. By default an update of Muon is scaled to the size of those of AdamW, by 0.2·√max(rows, columns), so that
    one learning rate and one weight decay serve both (Liu et al. 2025, "Muon is scalable for LLM training",
    section 2.2).

    Args:
        params: the groups of `param_groups` with `muon_lr`, whose names begin with `hidden` where Muon trains.
        lr, weight_decay: for groups without a rate or decay of their own.
        momentum, nesterov, ns_steps, adjust_lr_fn: of `torch.optim.Muon`.
        betas, eps, fused, capturable: of `torch.optim.AdamW`.
        adamw_scale: factor on the rates of AdamW's groups, for an `adjust_lr_fn` by which updates differ in size.

    Raises:
        ValueError: there are no hidden matrices, or a value is out of range; torch is older than 2.9.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adamw_scale: float = 1.0,
        fused: bool | None = None,
        capturable: bool = False,
    ) -> None:
        groups = [{"lr": lr, "weight_decay": weight_decay, **group} for group in params if isinstance(group, dict)]
        if not any(map(_is_hidden, groups)):
            raise ValueError(
                "Muon trains hidden matrices, the two-dimensional weights between the first and the last layer, and "
                "these parameters have no group of them, named hidden: the network has none, such as a network of "
                "convolutions, or the groups are not those of param_groups(…, muon_lr=…). Choose AdamW instead."
            )
        if not OF_MATRICES:
            raise ValueError(
                f"Muon needs torch 2.9 or newer for torch.optim.Muon; this is {torch.__version__}: choose AdamW."
            )
        of_muon = {"momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn}
        of_adamw = {"betas": betas, "eps": eps, "fused": fused, "capturable": capturable}
        for group in groups:
            own = of_muon if _is_hidden(group) else of_adamw
            group |= {key: value for key, value in own.items() if key not in group}
            if not _is_hidden(group):
                group |= {key: group[key] * adamw_scale for key in ("lr", "rate_scale") if key in group}
        super().__init__(groups, {})
        self._divide()

    def _divide(self) -> None:
        """Make the two optimizers, which share the groups and the state of this one."""
        hidden = [group for group in self.param_groups if _is_hidden(group)]
        rest = [group for group in self.param_groups if not _is_hidden(group)]
        self._parts: tuple[Optimizer, ...] = (OF_MATRICES[0](hidden), *([AdamW(rest)] if rest else []))
        for part in self._parts:
            part.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._divide()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; return the value of the closure, if there is one, which computes loss and gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            # torch wraps the method to call hooks around it, which see this optimizer.
            step: Any = type(part).step
            step.__wrapped__(part)
        return loss


def _is_hidden(group: dict[str, Any]) -> bool:
    return str(group.get("name", "")).partition(":")[0] == "hidden"
