"""ScaleSums: a factor on every sum and nothing else."""

from __future__ import annotations

import pytest
import torch
from edit_helpers import edited, images
from torch import Tensor, nn

import normless as nl
from normless.edits import RemoveNorms, ScaleSums
from normless.models import resnet_cifar, wide_resnet


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


class TwoBranches(nn.Module):
    """A sum of two branches; one ends in a product, so that its multiplier becomes a part of an addition."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.f, self.g, self.form = nn.Linear(4, 4), nn.Linear(4, 4), form

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "x + f + g":
            g = self.g(torch.tanh(x))
            return x + torch.sigmoid(self.f(x)) * torch.tanh(x) + g
        both = torch.sigmoid(self.f(x)) * torch.tanh(x) + self.g(torch.tanh(x))
        return x + both if self.form == "x + (f + g)" else both + x


@pytest.mark.parametrize("form", ["x + f + g", "x + (f + g)", "(f + g) + x"])
def test_the_factor_multiplies_the_whole_sum(form: str) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), TwoBranches(form)), torch.randn(3, 4)
    net = nl.convert(model, nl.Scheme("half", (ScaleSums(0.5),)), x)
    torch.testing.assert_close(net(x), 0.5 * model(x))


def test_multipliers_close_both_branches_in_whatever_order_they_run() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), TwoBranches("x + f + g")), torch.randn(3, 4)
    torch.testing.assert_close(nl.convert(model, "skipinit", x)(x), model[0](x))


def test_branches_that_are_added_to_each_other_first_have_no_place_for_a_multiplier() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), TwoBranches("x + (f + g)")), torch.randn(3, 4)
    with pytest.raises(nl.UnsupportedEditError, match="its branches are added to each other before the skip path"):
        nl.convert(model, "skipinit", x)
