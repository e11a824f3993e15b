"""What is told of a network before it is trained: one trace, parameters by group, a plan or a reason per scheme."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import normless as nl
from normless.cli.inspection import GroupSize, inspect_network
from normless.edits import Edit, Surgery
from normless.models import dense, resnet_cifar, wide_resnet
from normless.schemes import SCHEMES, Scheme


class Residual(nn.Module):
    """x + w₂·relu(norm(w₁ x)), with the sum as an operator."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.relu = nn.ReLU()
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
        h = self.second(self.relu(self.norm(self.first(x))))
        return x + (h if gain is None else h * gain)


def test_groups_have_the_sizes_of_the_papers_network() -> None:
    """He et al.'s ResNet-20 by hand: 3·3·(3·16 + 6·16² + 16·32 + 5·32² + 32·64 + 5·64²) + 640 weights."""
    found = inspect_network(resnet_cifar(20), schemes=())
    channels = [16] * 6 + [32] * 6 + [64] * 6
    weights = 9 * (3 * 16 + 6 * 16**2 + 16 * 32 + 5 * 32**2 + 32 * 64 + 5 * 64**2) + 640
    last = sum(channels) // 2
    assert found.groups == (
        GroupSize("weights", 20, weights, True),
        GroupSize("gamma_last", 9, last, True),
        GroupSize("gamma_stem", 1, 16, False),
        GroupSize("gamma_other", 9, last, True),
        GroupSize("biases", 20, 16 + sum(channels) + 10, False),
    )
    assert sum(group.parameters for group in found.groups) == 269_722


def test_frozen_parameters_are_a_group_of_their_own() -> None:
    model = wide_resnet(10, 1)
    model.stem.weight.requires_grad_(False)
    assert inspect_network(model, schemes=()).groups[-1] == GroupSize("frozen", 1, 3 * 16 * 9, False)


@pytest.mark.parametrize("build", [lambda: resnet_cifar(8), lambda: wide_resnet(10, 1), lambda: dense(2, 8)])
def test_every_scheme_has_the_plan_or_the_reason_that_plan_gives(build) -> None:  # type: ignore[no-untyped-def]
    model = build()
    images = torch.randn(4, 100) if "Dense" in type(model).__name__ else torch.randn(4, 3, 8, 8)
    found = inspect_network(model, images)
    assert [item.scheme for item in found.schemes] == list(SCHEMES)
    for item in found.schemes:
        if item.reason is None:
            assert item.by_edit == Counter(change.edit for change in nl.plan(model, item.scheme, images))
        else:
            assert item.changes == ()
            with pytest.raises(nl.UnsupportedEditError) as refused:
                nl.plan(model, item.scheme, images)
            assert item.reason == str(refused.value)


def test_a_network_is_traced_once_and_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    export = torch.export.export

    def counted(*args: object, **kwargs: object) -> object:
        traced.append(args)
        return export(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("normless.residual.exporting.export", counted)
    model = nn.Sequential(nn.Linear(6, 6), Residual(6), Residual(6), nn.Linear(6, 2)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = inspect_network(model, torch.randn(5, 6))
    assert len(traced) == 1
    assert found.map.depth == 2
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    plans = {item.scheme: item for item in found.schemes}
    without = {"KeepScale(weights='fresh')": 2, "RemoveNorms()": 2}
    assert plans["none"].by_edit == without
    assert plans["skipinit"].by_edit == without | {"BranchMultiplier(init=0.0)": 2}
    assert plans["sqrt2"].by_edit == without | {"ScaleSums(factor=0.7071067811865475)": 2}
    assert "deepnorm" in str(plans["deepnorm"].reason).lower()


def test_one_scheme_that_breaks_does_not_take_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Edit):
        def apply(self, surgery: Surgery) -> None:
            raise AttributeError("no such thing")

    monkeypatch.setattr(
        "normless.cli.inspection.scheme", lambda text: Scheme(text, (Broken(),) if text == "broken" else ())
    )
    broken, whole = inspect_network(wide_resnet(10, 1), schemes=["broken", "whole"]).schemes
    assert whole.reason is None
    assert "An edit of broken fails on this WideResNet" in str(broken.reason)
    assert "AttributeError: no such thing" in str(broken.reason)
