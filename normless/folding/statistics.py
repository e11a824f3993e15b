"""The affine map per channel that a batch norm with running statistics is in evaluation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from normless.errors import UnsupportedEditError
from normless.nn import PartialBatchNorm1d, PartialBatchNorm2d


@torch.no_grad()
def affine_of(path: str, norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """The factor and the shift of every channel, both (C,) in float64, of a batch norm in evaluation.

        scale = γ / √(σ² + ε),   shift = β − μ · scale

    with the running μ and σ²; parts that the norm does not have are left out.

    Args:
        path: the norm's qualified name, for the error.
        norm: any batch norm of torch, or a subclass that computes the same in evaluation.

    Raises:
        UnsupportedEditError: the norm has no running statistics.
    """
    if norm.running_mean is None or norm.running_var is None:
        raise UnsupportedEditError(
            f"{path or 'This norm'} is a {type(norm).__name__} without running statistics "
            "(track_running_stats=False): it normalizes by each batch in evaluation too, so there is nothing to "
            "freeze it at. Give it running statistics and let some batches pass in train mode first."
        )
    scale = torch.ones_like(norm.running_var, dtype=torch.float64)
    shift = torch.zeros_like(scale)
    partial = isinstance(norm, (PartialBatchNorm1d, PartialBatchNorm2d))
    if not partial or norm.use_variance:
        scale /= (norm.running_var.double() + norm.eps).sqrt()
    if norm.weight is not None:
        scale *= norm.weight.double()
    if norm.bias is not None:
        shift += norm.bias.double()
    if not partial or norm.use_mean:
        shift -= norm.running_mean.double() * scale
    return scale, shift
