"""When activations are recomputed: what a batch takes, counted against what autograd keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import wide_resnet
from normless.optim._recomputation import Segments
from normless_lab.train._execution import activation_bytes, recompute_where_needed

IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6)


def saved_bytes(network: nn.Module) -> int:
    """Bytes of the tensors that autograd keeps, each storage once, kept alive while they are counted."""
    kept: dict[int, Any] = {}
    own = {one.untyped_storage().data_ptr() for one in (*network.parameters(), *network.buffers())}

    def pack(one: Tensor) -> Tensor:
        if one.untyped_storage().data_ptr() not in own:
            kept[one.untyped_storage().data_ptr()] = one
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        loss = F.cross_entropy(network(IMAGES), LABELS)
    del loss
    return sum(one.untyped_storage().nbytes() for one in kept.values())


def test_the_memory_is_compared_with_what_autograd_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nl.convert(wide_resnet(34, 1, in_channels=1), "skipinit")
    mapped, whole = nl.residual_map(network), activation_bytes(network, IMAGES)
    # The loss keeps its own logits in addition.
    assert 0 <= saved_bytes(network) - whole < 1000
    for free, recomputed in ((2 * whole, 0), (2 * whole - 2, 1)):
        monkeypatch.setattr("normless_lab.train._execution.free_memory", lambda device, free=free: free)
        recompute_where_needed("auto", network, mapped, IMAGES)
        assert sum(isinstance(one, Segments) for one in network.modules()) == recomputed
    # The inputs of 4 segments of 15 blocks, the stem and the head, and no activation inside.
    assert activation_bytes(network, IMAGES) < 0.25 * whole
