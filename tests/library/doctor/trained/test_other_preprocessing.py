"""Other preprocessing than in training and wrong running statistics are told apart, and the cure is tried."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from matrix.case import changed, state_of
from test_trained_weights import HELD, learn, residual
from torch import Tensor, nn
from torch.nn import functional as F
from trained_health import quick

Change = Callable[[Tensor], Tensor]


def behind() -> nn.Sequential:
    """The first norm reads what a ReLU returns."""
    stem = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(16))
    end = (nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.ReLU(), nn.BatchNorm2d(24), nn.Flatten())
    return nn.Sequential(*stem, *end, nn.Linear(384, 10))


@cache
def trained(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return learn(build())


def raw(x: Tensor) -> Tensor:
    return x * 6.0 + 4.9


CHANGES: dict[str, Change] = {
    "from 0 to 255": lambda x: raw(x) * 255 / 16,
    "in [0, 1]": lambda x: raw(x) / 16,
    "in [-1, 1]": lambda x: raw(x) / 8 - 1,
    "inverted": lambda x: (16 - raw(x) - 4.9) / 6.0,
}


@pytest.mark.parametrize("build", [residual, behind])
@pytest.mark.parametrize("name", CHANGES)
def test_other_preprocessing_is_told_and_undone(build: Callable[[], nn.Module], name: str) -> None:
    net = trained(build)
    before = state_of(net)
    given = [(CHANGES[name](x), y) for x, y in HELD]
    found = quick(net, given).findings[0]
    assert changed(before, state_of(net)) == []
    assert found.kind == "other_preprocessing"
    zero, one = (float(CHANGES[name](torch.tensor(value))) for value in (0.0, 1.0))
    if name != "inverted":
        assert found.evidence["scale"] == pytest.approx(one - zero, rel=0.15)
    # The loss after the cure is nearly that of the inputs as in training.
    with torch.no_grad():
        good = float(sum(F.cross_entropy(net(x), y) for x, y in HELD)) / len(HELD)
    assert found.cure.is_tried
    assert float(found.cure.words.partition(" to ")[2].partition(";")[0]) == pytest.approx(good, abs=0.15)


def stale(norm: Any) -> None:
    norm.running_mean += norm.running_var.sqrt() * torch.linspace(-2, 2, len(norm.running_mean))
    norm.running_var *= 4


def wide(norm: Any) -> None:
    norm.running_var *= 25


@pytest.mark.parametrize("build", [residual, behind])
@pytest.mark.parametrize(
    ("damage", "only"), [(stale, slice(None)), (stale, slice(1)), (wide, slice(1)), (wide, slice(1, 2))]
)
def test_wrong_statistics_are_named_and_new_ones_tried(
    build: Callable[[], nn.Module], damage: Callable[[Any], None], only: slice
) -> None:
    net = deepcopy(trained(build))
    norms = [path for path, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)][only]
    for path in norms:
        damage(net.get_submodule(path))
    before = state_of(net)
    found = quick(net, HELD).findings[0]
    assert changed(before, state_of(net)) == []
    assert (found.kind, set(found.where)) == ("unfitting_statistics", set(norms))
    assert found.cure.is_tried
    again = deepcopy(trained(build))
    with torch.no_grad():
        good = float(sum(F.cross_entropy(again(x), y) for x, y in HELD)) / len(HELD)
    assert float(found.cure.words.partition(" to ")[2].partition(";")[0]) == pytest.approx(good, abs=0.1)


def test_the_order_of_channels_is_told() -> None:
    torch.manual_seed(0)
    colours = torch.tensor([-0.6, 0.1, 0.5]).view(1, 3, 1, 1)
    x = torch.randn(256, 3, 6, 6) * 0.8 + colours
    net = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.BatchNorm2d(24), nn.Flatten(), nn.Linear(384, 4))
    with torch.no_grad():
        net[2].momentum = None
        net.train()(x)
    found = quick(net, [x.flip(1)[:128], x.flip(1)[128:]]).findings[0]
    assert found.kind == "other_preprocessing"
    assert "reverse order" in found.title
    assert not quick(net, [x[:128], x[128:]]).findings
