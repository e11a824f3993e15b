"""Find the order in which a norm returns its output's elements in memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from normless.nn._memory_order import MemoryFormat, order_of
from normless.residual._inside_norms import is_plain, trials
from normless.state import running


def output_order(norm: nn.Module, shape: tuple[int, ...] | None) -> MemoryFormat | None:
    """Return the order of a norm's outputs, None if it is that of the input; run norms that are not torch's own.

    Layer norms of torch return contiguous outputs. Batch norms of images return the order of their input. A norm that
    permutes images (B, C, H, W), applies a layer norm to their channels and permutes back returns `channels_last`.

    Args:
        norm: the norm; its state is preserved.
        shape: the shape of its input, if known.
    """
    if shape is not None and not 3 <= len(shape) <= 5:
        return None
    if is_plain(norm) or isinstance(norm, _NormBase):
        return "contiguous" if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)) else None
    for x in trials(norm, shape):
        given = (x, _channels_last(x))
        if x.dim() < 3 or order_of(given[0]) == order_of(given[1]):
            continue
        try:
            with running(norm, False):
                orders = {order_of(norm(tensor)) for tensor in given}
        except Exception:  # A norm may need another shape, or more than one tensor.
            continue
        return orders.pop() if len(orders) == 1 else None
    return None


def _channels_last(x: Tensor) -> Tensor:
    """Return x, (B, C, …), with the elements of C next to each other in memory."""
    return torch.movedim(torch.movedim(x, 1, -1).contiguous(), -1, 1)
