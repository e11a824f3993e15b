"""The probe `gammas`: ‖γ‖ of every norm by role."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normless as nl
from normless.models import resnet_cifar


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
