"""Batch norms of several processes: their conversion."""

from __future__ import annotations

import torch
from torch import nn

from normless.models import build_model
from normless_lab.train._execution import synchronized

IMAGES = torch.randn(4, 3, 8, 8)


def test_every_batch_norm_is_torchs_synchronized_one_with_its_own_tensors() -> None:
    network = build_model("normless:resnet_cifar(depth=8)")
    network(IMAGES)
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    expected = network.eval()(IMAGES)
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    converted = synchronized(network)
    assert norms == sum(isinstance(module, nn.SyncBatchNorm) for module in converted.modules()) > 0
    after = {**dict(converted.named_parameters()), **dict(converted.named_buffers())}
    assert after.keys() == tensors.keys()
    assert all(after[name] is tensors[name] for name in tensors)
    assert torch.equal(converted(IMAGES), expected)
