"""The benchmark measures what it says: the rival is the same function, and every network gets its turns."""

from __future__ import annotations

import torch

from normless import convert
from normless.bench import StepBench, measure_step
from normless.bench.rivals import HandWrittenFixup
from normless.models import resnet_cifar


def test_the_hand_written_rival_is_fixup() -> None:
    network = resnet_cifar(14).double()
    ours = convert(network, "fixup(rescale=False, zero=False)")
    rival = HandWrittenFixup(network).double()
    assert sum(p.numel() for p in rival.parameters()) == sum(p.numel() for p in ours.parameters())
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    assert torch.allclose(ours(images), rival(images), rtol=0, atol=1e-10)


def test_every_network_is_compared_with_the_bare_one() -> None:
    table = measure_step(StepBench(depth=8, batch_size=2, image_size=8, rounds=3))
    assert table["network"].tolist() == ["none", "skipinit(alpha=1)", "fixup", "batch_norm", "hand-written fixup"]
    assert table["ratio"][0] == 1.0
    assert (table["seconds"] > 0).all()
    assert (table["lowest"] <= table["ratio"]).all()
    assert (table["ratio"] <= table["highest"]).all()
