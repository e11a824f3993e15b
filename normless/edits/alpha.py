"""Find the initial α of DyT and Derf by trial steps."""

from __future__ import annotations

from copy import deepcopy
from math import inf, isfinite

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from normless._internal.arguments import applied, on_device_of
from normless._internal.state import in_mode, preserve_random_state, running
from normless.edits.surgery import Surgery
from normless.nn import Pointwise

CANDIDATES = (0.1, 0.2, 0.3, 0.5, 0.8, 1.25)
RATES = (1e-3, 1e-2)
STEPS = 20
# One in this many examples is held out to compare trials, if there are that many.
HELD_OUT = 4


def outputs_before(surgery: Surgery) -> Tensor:
    """Return the largest output of the network on the example inputs in evaluation, before its norms are replaced."""
    surgery.need_inputs("searches for α by trial steps", "dyt(alpha=search)")
    inputs, kwargs = on_device_of(surgery.model, surgery.inputs, surgery.kwargs)
    with running(surgery.model, training=False):
        outputs = _largest(surgery, applied(surgery.model, *inputs, **kwargs)).detach().float()
    if not (torch.isfinite(outputs).all() and outputs.numel() > 1 and outputs.var() > 0):
        raise surgery.unsupported("", "trials need outputs with its norms that are finite and not all equal")
    return outputs


def search_alpha(surgery: Surgery, targets: Tensor) -> None:
    """Set α of every pointwise norm to the candidate with outputs closest to those of the network with norms.

    A trial trains a copy for `STEPS` steps of Adam at each of `RATES` on the squared distance from `targets`, the
    outputs of the network with its norms on the example inputs, without dropout. Trials are compared by the distance
    on a quarter of the examples that is held out, at the better rate.

    Raises:
        UnsupportedEditError: no candidate gives a finite loss.
    """
    norms = [module for module in surgery.model.modules() if isinstance(module, Pointwise)]

    def set_alpha(alpha: float) -> None:
        for norm in norms:
            norm.alpha.data.fill_(alpha)

    losses: dict[float, float] = {}
    for alpha in CANDIDATES:
        set_alpha(alpha)
        losses[alpha] = min(_distance_after_steps(surgery, targets, rate) for rate in RATES)
    best = min(losses, key=losses.__getitem__)
    if losses[best] == inf:
        raise surgery.unsupported(
            "", f"no α among {', '.join(map(str, CANDIDATES))} gave a finite loss in trial steps"
        )
    set_alpha(best)
    tried = ", ".join(f"{alpha:g}: {loss:.4g}" for alpha, loss in losses.items())
    surgery.record("", f"α initially {best:g}, closest to the outputs with norms after trial steps ({tried})")


def _distance_after_steps(surgery: Surgery, targets: Tensor, rate: float) -> float:
    """Return the squared distance from the targets after trial steps, relative to the variance of the targets."""
    model = deepcopy(surgery.model)
    inputs, kwargs = on_device_of(model, surgery.inputs, surgery.kwargs)
    optimizer = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], rate)
    trained = len(targets) - len(targets) // HELD_OUT if targets.dim() > 1 else len(targets)
    compared = slice(trained, None) if trained < len(targets) else slice(None)
    distance = inf
    with torch.enable_grad(), preserve_random_state(model), in_mode(model, training=False):
        for step in range(STEPS + 1):
            outputs = _largest(surgery, applied(model, *inputs, **kwargs)).float()
            distance = F.mse_loss(outputs[compared].detach(), targets[compared]).item() / targets.var().item()
            if step == STEPS or not isfinite(distance):
                break
            if not outputs.requires_grad:
                raise surgery.unsupported("", "its outputs do not depend on trainable parameters")
            optimizer.zero_grad()
            torch.autograd.backward(F.mse_loss(outputs[:trained], targets[:trained]))
            optimizer.step()
    return distance if isfinite(distance) else inf


def _largest(surgery: Surgery, outputs: object) -> Tensor:
    """Return the largest floating-point tensor in a network's output."""
    tensors = [output for output in tree_leaves(outputs) if isinstance(output, Tensor) and output.is_floating_point()]
    if not tensors:
        raise surgery.unsupported("", "it returns no floating-point tensor, which is needed to compare trials")
    return max(tensors, key=Tensor.numel)
