"""Batch norms with the statistics of the examples of all processes."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def synchronized(network: nn.Module) -> nn.Module:
    """Return the network with torch's SyncBatchNorm for each batch norm, with the same parameters and buffers.

    Raises:
        ValueError: it has a batch norm with other statistics, such as those of ghost batches.
    """
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm) and type(module) not in _PLAIN:
            raise ValueError(
                f"sync_batch_norm takes the statistics of whole batches, but {name} is a {type(module).__name__} "
                "with statistics of its own; leave sync_batch_norm out."
            )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    return converted
