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
    layer and group norms the second moment is known where γ is the same for all channels and β zero. Without
    `training`, a batch norm that was never trained uses its running statistics, others those of these inputs.

    Args:
        module: a batch, instance, group, layer or RMS norm; the last divides by the root of the second moment.
        moments: of its input, or None.
        shape: of its input, (B, …).
        training: whether a batch norm uses the batch's statistics.

    Returns:
        The moments of its output; None where they are unknown.
    """
    gamma, beta = _affine(module, shape)
    use_mean, use_variance = (getattr(module, name, True) for name in ("use_mean", "use_variance"))
    untrained, is_batch = _is_untrained(module, training), isinstance(module, _NormBase)
    if moments is None:
        if isinstance(module, nn.RMSNorm) or untrained or not (use_mean and use_variance):
            return None
        flat = torch.zeros(1, *shape[1:], dtype=torch.float64, device=gamma.device)
        if is_batch:
            return Moments.of(flat + beta, flat + gamma.square())
        # Only the average over channels is 1; the mean of each channel is unknown.
        if float(gamma.max() - gamma.min()) > 0 or bool(beta.any()):
            return None
        return Moments.of(flat, flat + gamma.square() + beta.square(), split=False)
    centre, scale = _statistics(module, moments, shape, untrained)
    factor = gamma * scale if use_variance else gamma
    mean = (moments.mean - centre if use_mean else moments.mean) * factor + beta
    # A batch norm subtracts the batch's own mean.
    noise = torch.zeros_like(mean) if is_batch and not untrained else moments.noise * factor.square()
    return Moments(mean, moments.variance * factor.square(), noise, split=moments.split or is_batch)


def _affine(module: nn.Module, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """γ and β, shaped to broadcast over the input."""
    sizes = [1] * len(shape)
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) > 1:
        sizes[-len(module.normalized_shape) :] = module.normalized_shape
    else:
        sizes[channel_axis(module, torch.empty(shape, device="meta"))] = -1
    like = next(iter((*module.parameters(), *module.buffers())), torch.empty(0))
    gamma, beta = (
        like.new_full((), absent, dtype=torch.float64) if value is None else value.detach().double().reshape(sizes)
        for value, absent in ((getattr(module, "weight", None), 1.0), (getattr(module, "bias", None), 0.0))
    )
    return gamma, beta


def _is_untrained(module: nn.Module, training: bool) -> bool:
    """Whether a norm uses running statistics that no batch has updated."""
    tracked = getattr(module, "num_batches_tracked", None)
    return isinstance(module, _NormBase) and not training and tracked is not None and int(tracked) == 0


def _statistics(module: nn.Module, moments: Moments, shape: torch.Size, untrained: bool) -> tuple[Tensor, Tensor]:
    """μ and 1/√(σ² + ε): running statistics, or those over the axes that the norm averages besides examples."""
    epsilon = getattr(module, "eps", None)
    small = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    if untrained:
        sizes = (1, -1, *[1] * (len(shape) - 2))
        centre, square = (module.get_buffer(f"running_{name}").double().reshape(sizes) for name in ("mean", "var"))
        return centre, (square + small).rsqrt()
    mean, second = moments.mean, moments.second
    grouped, axes = mean.shape, tuple(range(2, len(shape)))
    if isinstance(module, nn.GroupNorm):
        grouped = torch.Size((1, module.num_groups, shape[1] // module.num_groups, *shape[2:]))
        axes = tuple(range(2, len(grouped)))
    elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        count = len(module.normalized_shape)
        channel = channel_axis(module, torch.empty(shape, device="meta"))
        axes = (channel,) if count == 1 else tuple(range(len(shape) - count, len(shape)))

    def average(values: Tensor) -> Tensor:
        wide = values.reshape(grouped)
        return wide.mean(axes, keepdim=True).expand(grouped).reshape(values.shape) if axes else values

    centre = torch.zeros_like(mean) if isinstance(module, nn.RMSNorm) else average(mean)
    return centre, (average(second) - centre.square() + small).rsqrt()
