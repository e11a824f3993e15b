"""What every edit can rely on: errors that name the edit and the module, a record of what was done."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
from edit_helpers import edited
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.edits import BranchMultiplier, NormOnSkip, RemoveBranches, ScalarBiases, ScaleSums
from normless.nn import ResidualSum


class Operator(nn.Module):
    """A residual block whose sum is a + in the forward code."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.first, self.relu, self.last = nn.Linear(4, 4), nn.ReLU(), last
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head(h + self.last(self.relu(self.first(h))))


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (ScaleSums(0.5), lambda h, branch: 0.5 * (h + branch)),
        (NormOnSkip(), lambda h, branch: F.batch_norm(h + branch, None, None, training=True)),
        (NormOnSkip("skip_path"), lambda h, branch: F.batch_norm(h, None, None, training=True) + branch),
        (RemoveBranches(), lambda h, branch: h),
    ],
)  # fmt: skip
def test_an_edit_of_the_sum_makes_an_operator_a_module(edit, expected) -> None:
    model, x = Operator(nn.Linear(4, 4)), torch.randn(7, 4)
    net = edited(model, edit, inputs=(x,))
    h = model.stem(x)
    torch.testing.assert_close(net(x), model.head(expected(h, model.last(torch.relu(model.first(h))))))
    assert isinstance(net, Operator)
    assert not hasattr(model, "residual_sum")
    assert isinstance(net.residual_sum, ResidualSum)


class Stacked(Operator):
    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head(torch.stack([h, self.last(self.relu(self.first(h)))]).sum(0))


def test_where_the_forward_code_cannot_be_rewritten_an_edit_of_the_sum_says_why() -> None:
    with pytest.raises(nl.UnsupportedEditError, match=r"ScaleSums.*not an addition of two tensors.*nn\.ResidualSum"):
        edited(Stacked(nn.Linear(4, 4)), ScaleSums(), inputs=(torch.randn(3, 4),))


class OwnLinear(nn.Linear):
    """Of another type than torch's own, so that nothing is known of its forward."""


def test_where_a_layer_takes_no_scalars_the_multiplier_goes_into_the_sum() -> None:
    model, x = Operator(OwnLinear(4, 4)), torch.randn(3, 4)
    net = edited(model, BranchMultiplier(0.5), inputs=(x,))
    assert net.residual_sum.multiplier.shape == (1,)
    h = model.stem(x)
    torch.testing.assert_close(net(x), model.head(h + 0.5 * model.last(torch.relu(model.first(h)))))


def test_scalars_come_around_a_layer_whose_forward_is_not_known() -> None:
    model, x = Operator(nn.Linear(4, 4)), torch.randn(3, 4)
    model.first, model.relu = OwnLinear(4, 4), nn.Tanh()
    net = edited(model, ScalarBiases(), inputs=(x,))
    assert isinstance(net.first, OwnLinear)
    torch.testing.assert_close(net(x), model(x))
    for one, value in ((net.first.input_bias, 0.3), (net.first.output_bias, -0.2)):
        nn.init.constant_(one, value)
    h = model.stem(x)
    expected = model.head(h + model.last(torch.tanh(model.first(h + 0.3) - 0.2)))
    for one in (net, deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(one(x), expected)


def test_a_multiplier_comes_behind_an_activation_that_ends_the_branch() -> None:
    model, x = Operator(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), torch.randn(3, 4)
    net = edited(model, BranchMultiplier(0.0), inputs=(x,))
    assert torch.equal(net(x), net.head(net.stem(x)))
    net(x).square().sum().backward()
    assert net.residual_sum.multiplier.grad.any()


class Sometimes(Operator):
    """Leaves its branch out for a single example."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head(h if len(x) == 1 else h + self.last(self.relu(self.first(h))))


def test_a_place_that_the_network_does_not_pass_is_no_place_for_an_edit() -> None:
    model = Sometimes(nn.Linear(4, 4))
    found = nl.residual_map(model, torch.randn(3, 4))
    with pytest.raises(nl.UnsupportedEditError, match="calls last 0 times instead of once"):
        nl.convert(model, "skipinit", torch.randn(1, 4), residual_map=found)
    assert nl.convert(model, "skipinit", torch.randn(3, 4), residual_map=found).last.multiplier.item() == 0


def test_checking_a_conversion_moves_no_running_statistics() -> None:
    model = Operator(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4)))
    net = nl.convert(model, "layer_scale", torch.randn(5, 4))
    assert torch.equal(net.last[0].running_mean, torch.zeros(4))
    assert net.last[0].num_batches_tracked.item() == 0


def test_every_edit_of_every_scheme_compares_and_prints_as_data() -> None:
    for name in nl.SCHEMES:
        one, other = nl.scheme(name), nl.scheme(name)
        assert one == other
        assert hash(one) == hash(other)
        assert all(repr(edit).startswith(f"{type(edit).__name__}(") for edit in one.edits)
