"""ScaleSums: a factor on every sum and nothing else."""

from __future__ import annotations

import pytest
import torch
from edit_helpers import added, altered, edited, images, removed, retyped

from normless.edits import RemoveNorms, ScaleSums
from normless.models import resnet_cifar, wide_resnet


def test_only_the_factors_change() -> None:
    model = wide_resnet(16, 1)
    net = edited(model, ScaleSums())
    assert not added(model, net) | removed(model, net) | altered(model, net)
    assert retyped(model, net) == {}
    assert [block.sum.factor for block in net.blocks] == pytest.approx([2**-0.5] * 6, rel=1e-15)
    assert [block.sum.factor for block in model.blocks] == [1.0] * 6


def test_each_block_is_the_sum_times_the_factor() -> None:
    net = edited(resnet_cifar(8), RemoveNorms(), ScaleSums(0.25))
    x = torch.randn(2, 16, 8, 8)
    block = net.blocks[0]
    branch = block.conv2(torch.relu(block.conv1(x)))
    torch.testing.assert_close(block(x), torch.relu((x + branch) * 0.25))


def test_factors_of_two_edits_multiply() -> None:
    net = edited(wide_resnet(10, 1), ScaleSums(0.5), ScaleSums(0.5))
    assert [block.sum.factor for block in net.blocks] == [0.25] * 3
    assert net(images()).isfinite().all()
