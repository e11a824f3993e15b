"""The probe `gammas`: ‖γ‖ of every norm by role, alone and during a training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normless as nl
from normless.models import resnet_cifar
from normless.probes import RideAlong, every


def test_norms_by_role_of_gammas_that_are_set() -> None:
    model = resnet_cifar(8, classes=4)
    images = torch.randn(4, 3, 8, 8)
    found = nl.residual_map(model, images)
    for order, path in enumerate(found.norms, 1):
        nn.init.constant_(model.get_submodule(path).weight, float(order))  # type: ignore[arg-type]
    table = nl.probe(model, images, ["gammas"]).gammas
    assert list(table["layer"]) == list(found.norms)
    assert list(table["role"]) == list(found.norms.values())
    assert list(table["order"]) == list(range(1, len(table) + 1))
    # ‖γ‖ of C channels that are all g is g √C.
    assert table["gamma_norm"].to_numpy() == pytest.approx((table["order"] * table["channels"] ** 0.5).to_numpy())
    assert table["channels"].to_list()[0] == model.get_submodule(table["layer"][0]).weight.numel()  # type: ignore[union-attr,operator]


def test_norms_without_gamma_have_no_row() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 2))
    table = nl.probe(model, torch.randn(3, 4), ["gammas"]).gammas
    assert table.empty
    assert list(table.columns) == ["order", "layer", "role", "channels", "gamma_norm"]


def test_norms_during_a_training_are_those_before_each_step() -> None:
    model = resnet_cifar(8, classes=4)
    images, classes = torch.randn(4, 3, 8, 8), torch.arange(4)
    found, ride = nl.residual_map(model, images), RideAlong(("gammas",), every(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    expected = {}
    names = [f"{path}.weight" for path, role in found.norms.items() if role == "other"]
    for step in range(1, 5):
        expected[step] = float(torch.cat([model.get_parameter(name).detach() for name in names]).norm())
        with ride.during(step, model, found, classes):
            nn.functional.cross_entropy(model(images), classes).backward()
        optimizer.step()
        optimizer.zero_grad()
    table = ride.tables()["gammas"]
    own = table[table["role"] == "other"]
    norms = (own["gamma_norm"] ** 2).groupby(own["step"]).sum() ** 0.5
    assert norms.to_dict() == pytest.approx({step: expected[step] for step in (1, 3)})
