"""The α₀ of DyT and Derf found by trial steps."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from math import inf, isfinite

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from normless.arguments import applied, on_device_of
from normless.edits.surgery import Surgery
from normless.lifting import in_mode
from normless.nn import Pointwise

CANDIDATES = (0.1, 0.2, 0.3, 0.5, 0.8, 1.25, 2.0)
RATES = (1e-3, 1e-2)
STEPS = 20


def search_alpha(surgery: Surgery) -> None:
    """Set α of every pointwise norm to the candidate with the lowest loss after trial steps.

    A trial trains a copy for `STEPS` steps of Adam at each of `RATES` to fit random targets for the example inputs
    (classes along the last axis of outputs of two or three axes, else normal values), without dropout; the mean loss
    of the last quarter of the steps counts, at the better rate.

    Raises:
        UnsupportedEditError: no candidate gives a finite loss.
    """
    surgery.need_inputs("searches for α by trial steps", "dyt(alpha=search)")
    norms = [one for one in surgery.model.modules() if isinstance(one, Pointwise)]

    def set_alpha(alpha: float) -> None:
        for norm in norms:
            norm.alpha.data.fill_(alpha)

    losses: dict[float, float] = {}
    for alpha in CANDIDATES:
        set_alpha(alpha)
        losses[alpha] = min(_loss_after_steps(surgery, rate) for rate in RATES)
    best = min(losses, key=losses.__getitem__)
    if losses[best] == inf:
        raise surgery.unsupported(
            "", f"no α among {', '.join(map(str, CANDIDATES))} gave a finite loss in trial steps"
        )
    set_alpha(best)
    tried = ", ".join(f"{alpha:g}: {loss:.4g}" for alpha, loss in losses.items())
    surgery.record("", f"α initially {best:g}, of the lowest loss after {STEPS} trial steps ({tried})")


def _loss_after_steps(surgery: Surgery, rate: float) -> float:
    model = deepcopy(surgery.model)
    inputs, kwargs = on_device_of(model, surgery.inputs, surgery.kwargs)
    optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], rate)
    loss_of: Callable[[Tensor], Tensor] | None = None
    losses: list[float] = []
    with torch.enable_grad(), torch.random.fork_rng(devices=[]), in_mode(model, training=False):
        for _ in range(STEPS):
            outputs = _largest(applied(model, *inputs, **kwargs))
            if outputs is None or not outputs.requires_grad:
                raise surgery.unsupported("", "it returns no tensor that depends on trained parameters")
            loss_of = loss_of or _random_targets(outputs)
            loss = loss_of(outputs)
            losses.append(loss.item())
            if not isfinite(losses[-1]):
                return inf
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    last = losses[-STEPS // 4 :]
    return sum(last) / len(last)


def _largest(outputs: object) -> Tensor | None:
    """The largest floating tensor that a network returned."""
    tensors = [one for one in tree_leaves(outputs) if isinstance(one, Tensor) and one.is_floating_point()]
    return max(tensors, key=Tensor.numel, default=None)


def _random_targets(outputs: Tensor) -> Callable[[Tensor], Tensor]:
    """A loss against targets that are always the same, drawn for outputs of this shape."""
    generator = torch.Generator().manual_seed(0)
    if outputs.dim() in (2, 3) and outputs.shape[-1] > 1:
        classes = torch.randint(outputs.shape[-1], outputs.shape[:-1], generator=generator).to(outputs.device)
        return lambda made: F.cross_entropy(made.float().flatten(0, -2), classes.flatten())
    values = torch.randn(outputs.shape, generator=generator).to(outputs.device)
    return lambda made: F.mse_loss(made.float(), values)
