"""Mean and variance of activations after a norm, predicted."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from normless.nn.channels import channel_axis
from normless.signal.moments import Moments


def normalized(module: nn.Module, moments: Moments | None, shape: torch.Size, training: bool) -> Moments | None:
    """Moments after a norm of torch: γ·(x - μ)/√(σ² + ε) + β, with the μ and σ² of its input.

    Where the input's moments are unknown, σ² ≫ ε is assumed: a batch norm's output has mean β and variance γ², and of
    layer and group norms the second moment is known where γ is the same for all channels and β zero.

    Args:
        module: a batch, instance, group, layer or RMS norm; the last divides by the root of the second moment.
        moments: of its input, or None.
        shape: of its input, (B, …).
        training: whether a batch norm uses the batch's statistics. Otherwise it uses its running statistics if it was
            never trained, and the statistics of these inputs if it was.

    Returns:
        The moments of its output; None where they are unknown.
    """
    gamma, beta = _affine(module, shape)
    if moments is None:
        if isinstance(module, nn.RMSNorm) or not getattr(module, "use_mean", True):
            return None
        if _is_untrained(module, training) or not getattr(module, "use_variance", True):
            return None
        flat = torch.zeros(1, *shape[1:], dtype=torch.float64, device=gamma.device)
        if isinstance(module, _NormBase):
            return Moments(flat + beta, flat + gamma.square(), flat)
        # Only the average over channels is 1; the mean of each channel is unknown.
        if float(gamma.max() - gamma.min()) > 0 or bool(beta.any()):
            return None
        return Moments(flat, flat + gamma.square() + beta.square(), flat, split=False)
    centre, scale = _statistics(module, moments, shape, training)
    factor = gamma * scale if getattr(module, "use_variance", True) else gamma
    shift = centre if getattr(module, "use_mean", True) else torch.zeros_like(centre)
    noise = moments.noise * factor.square()
    if isinstance(module, _NormBase) and not _is_untrained(module, training):
        # The batch's own mean was subtracted.
        noise = torch.zeros_like(noise)
    split = moments.split or isinstance(module, _NormBase)
    return Moments((moments.mean - shift) * factor + beta, moments.variance * factor.square(), noise, split=split)


def _affine(module: nn.Module, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """γ and β, shaped to broadcast over the input."""
    sizes = [1] * len(shape)
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) > 1:
        sizes[-len(module.normalized_shape) :] = module.normalized_shape
    else:
        sizes[channel_axis(module, torch.empty(shape, device="meta"))] = -1
    parts = []
    for name, plain in (("weight", 1.0), ("bias", 0.0)):
        value = getattr(module, name, None)
        like = next(iter((*module.parameters(), *module.buffers())), torch.empty(0))
        absent = like.new_full((), plain, dtype=torch.float64)
        parts.append(value.detach().double().reshape(sizes) if isinstance(value, Tensor) else absent)
    return parts[0], parts[1]


def _is_untrained(module: nn.Module, training: bool) -> bool:
    """Whether a norm uses running statistics that no batch has updated."""
    tracked = getattr(module, "num_batches_tracked", None)
    return isinstance(module, _NormBase) and not training and tracked is not None and int(tracked) == 0


def _statistics(module: nn.Module, moments: Moments, shape: torch.Size, training: bool) -> tuple[Tensor, Tensor]:
    """μ and 1/√(σ² + ε): running statistics, or those over the axes that the norm averages besides examples."""
    epsilon = getattr(module, "eps", None)
    small = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    if _is_untrained(module, training):
        sizes = (1, -1, *[1] * (len(shape) - 2))
        centre, square = (module.get_buffer(f"running_{name}").double().reshape(sizes) for name in ("mean", "var"))
        return centre, (square + small).rsqrt()
    mean, second = moments.mean, moments.second
    grouped = mean.shape
    if isinstance(module, nn.GroupNorm):
        grouped = torch.Size((1, module.num_groups, shape[1] // module.num_groups, *shape[2:]))
        axes = tuple(range(2, len(grouped)))
    elif isinstance(module, _NormBase):
        axes = tuple(range(2, len(shape)))
    else:
        count = len(module.normalized_shape)  # type: ignore[arg-type]
        channel = channel_axis(module, torch.empty(shape, device="meta"))
        axes = (channel,) if count == 1 else tuple(range(len(shape) - count, len(shape)))

    def average(values: Tensor) -> Tensor:
        if not axes:
            return values
        wide = values.reshape(grouped)
        return wide.mean(axes, keepdim=True).expand(grouped).reshape(values.shape)

    centre = torch.zeros_like(mean) if isinstance(module, nn.RMSNorm) else average(mean)
    return centre, (average(second) - centre.square() + small).rsqrt()
