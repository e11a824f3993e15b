"""Statistics of channels, and vectors of one value per channel."""

from __future__ import annotations

from copy import deepcopy
from math import gcd
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd

from normless.errors import UnsupportedEditError

Norm = TypeVar("Norm", bound=nn.Module)

_FIRST = (_ConvNd, _NormBase, nn.GroupNorm)
_LAST = (nn.Linear, nn.Bilinear, nn.LayerNorm, nn.RMSNorm, nn.MultiheadAttention)
# Elements of a piece for each thread: 256 KiB in float64, and the smallest number that torch assigns to a thread.
_PIECE = 2**15


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Reshape a vector (C,) to broadcast over x of shape (B, C, …)."""
    return values.reshape(-1, *[1] * (x.dim() - 2))


def scale_and_shift(
    mean: Tensor | None, variance: Tensor | None, eps: float, gamma: Tensor | None, beta: Tensor | None, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the factor and the shift per channel of a norm, without the parts that are None.

        scale = γ / √(σ² + ε),   shift = β − μ · scale

    `like` is a vector (C,) of the dtype of the result.
    """
    scale = torch.ones_like(like) if variance is None else (variance.to(like) + eps).rsqrt()
    scale = scale if gamma is None else scale * gamma.to(like)
    shift = torch.zeros_like(like) if mean is None else -mean.to(like) * scale
    return scale, shift if beta is None else shift + beta.to(like)


def has_channels_first(module: nn.Module) -> bool:
    """Whether a layer's channels are surely on the second axis: by class, name `…2d`, data format or statistics."""
    if isinstance(getattr(module, "running_mean", None), Tensor):
        return True
    is_named = type(module).__name__.endswith("2d") or getattr(module, "data_format", "") == "channels_first"
    return is_named or isinstance(module, _FIRST)


def channel_axis(module: nn.Module, x: Tensor) -> int:
    """Return the channel axis of a layer's input or output.

    It is the last axis for linear layers and layer norms, and 1 for convolutions, batch norms and modules named
    `…2d`. For other layers it is the last axis if only that has the length of their `weight`, or else 1.
    """
    first, last = min(1, x.dim() - 1), x.dim() - 1
    if has_channels_first(module):
        return first
    weight = getattr(module, "weight", None)
    length = weight.shape[0] if isinstance(weight, Tensor) and weight.dim() == 1 else None
    fits_last_alone = length is not None and x.shape[last] == length != x.shape[first]
    return last if isinstance(module, _LAST) or fits_last_alone else first


def of_channels(norm: Norm, channels: int) -> Norm:
    """Copy a norm for another number of channels; a group norm keeps its groups, or has fewer that divide it.

    Raises:
        UnsupportedEditError: the norm has parameters of another size, as a norm over whole images.
    """
    made, known = deepcopy(norm), -1
    if isinstance(made, nn.GroupNorm):
        known, made.num_channels = made.num_channels, channels
        made.num_groups = gcd(made.num_groups, channels)
    elif isinstance(made, _NormBase):
        known, made.num_features = made.num_features, channels
    elif isinstance(made, (nn.LayerNorm, nn.RMSNorm)) and len(made.normalized_shape) == 1:
        (known,), made.normalized_shape = made.normalized_shape, (channels,)
    tables: list[Any] = [made._parameters, made._buffers]
    for table in tables:
        for name, value in table.items():
            if value is None or not value.dim() or value.shape == (channels,):
                continue
            if value.shape != (known,):
                sizes = f"has a {name} of shape {tuple(value.shape)}"
                raise UnsupportedEditError(f"a {type(norm).__name__} {sizes}, and {channels} channels are needed")
            new = value.detach()[:1].repeat(channels)
            table[name] = nn.Parameter(new, value.requires_grad) if isinstance(value, nn.Parameter) else new
    return made


def by_channel(module: nn.Module, x: Tensor) -> Tensor:
    """Reshape the input or output x of a layer, (B, C, …) or (B, …, C), to a matrix (C, N)."""
    return x.movedim(channel_axis(module, x), 0).flatten(1)


def in_pieces(x: Tensor) -> tuple[Tensor, ...]:
    """Split x along its first axis into pieces that fit the processor's caches; on other devices return x."""
    size = _PIECE * torch.get_num_threads()
    is_one = x.device.type != "cpu" or x.numel() <= size
    return (x,) if is_one else torch.split(x, max(1, size * len(x) // x.numel()))


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of each channel of x, (B, C, …), over batch and positions, both (C,)."""
    if x.numel() == x.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}.")
    variance, mean = torch.var_mean(x, dim=[0, *range(2, x.dim())], correction=0)
    return mean, variance


@torch.no_grad()
def move_running_statistics(norm: _BatchNorm, mean: Tensor, variance: Tensor, *, moved: Tensor | None = None) -> None:
    """Update a norm's running statistics, if it has any, by a batch as torch's layer does.

    `mean` and the unbiased `variance` are the batch's, shape (C,). If the boolean tensor `moved`, shape (), is false,
    nothing changes, without control flow on data.
    """
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    count = norm.num_batches_tracked
    taken = torch.ones_like(count) if moved is None else moved.to(count)
    count.add_(taken)
    average = 1.0 / count.clamp_min(1).to(mean.dtype)
    momentum = average if norm.momentum is None else torch.full_like(average, norm.momentum)
    norm.running_mean.lerp_(mean, momentum * taken)
    norm.running_var.lerp_(variance, momentum * taken)
