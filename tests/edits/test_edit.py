"""What every edit can rely on: errors that name the edit and the module, a record of what was done."""

from __future__ import annotations

import pytest
import torch
from edit_helpers import edited
from torch import Tensor, nn

import normless as nl
from normless.edits import BranchMultiplier, NormOnSkip, RemoveBranches, RemoveNorms, ScaleSums
from normless.models import wide_resnet


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


@pytest.mark.parametrize("edit", [ScaleSums(), NormOnSkip(), RemoveBranches()])
def test_an_edit_of_the_sum_refuses_an_operator_and_says_what_to_do(edit) -> None:
    with pytest.raises(nl.UnsupportedEdit) as caught:
        edited(Operator(nn.Linear(4, 4)), edit, inputs=(torch.randn(3, 4),))
    message = str(caught.value)
    assert message.startswith(f"{edit!r} is not possible ")
    assert "residual sum is an operator in the forward code" in message
    assert "normless.nn.ResidualSum" in message


def test_a_traced_network_takes_a_multiplier() -> None:
    model, x = Operator(nn.Linear(4, 4)), torch.randn(3, 4)
    net = edited(model, BranchMultiplier(0.5), inputs=(x,))
    h = model.stem(x)
    expected = model.head(h + 0.5 * model.last(torch.relu(model.first(h))))
    torch.testing.assert_close(net(x), expected)


def test_a_layer_that_takes_no_scalars_is_named_with_its_type() -> None:
    class OwnLinear(nn.Linear):
        pass

    with pytest.raises(
        nl.UnsupportedEdit, match=r"BranchMultiplier\(init=0.0\) is not possible at last: .*into a OwnLinear"
    ):
        edited(Operator(OwnLinear(4, 4)), BranchMultiplier(), inputs=(torch.randn(3, 4),))


def test_every_change_is_recorded_with_edit_and_path() -> None:
    changes = nl.plan(wide_resnet(10, 1), nl.Scheme("test", (RemoveNorms(), ScaleSums(0.5))))
    assert [change.edit for change in changes] == ["RemoveNorms()"] * 7 + ["ScaleSums(factor=0.5)"] * 3
    assert str(changes[-1]) == "ScaleSums(factor=0.5): blocks.2: sum × 0.5"
    assert str(nl.Change("Edit()", "", "done")) == "Edit(): the network: done"


@pytest.mark.parametrize("name", nl.SCHEMES)
def test_every_edit_of_every_scheme_compares_and_prints_as_data(name: str) -> None:
    one, other = nl.parse_scheme(name), nl.parse_scheme(name)
    assert one == other
    assert hash(one) == hash(other)
    assert all(repr(edit).startswith(f"{type(edit).__name__}(") for edit in one.edits)
