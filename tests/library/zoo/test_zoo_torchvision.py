"""A small network of every family of torchvision's classifiers, held against a count by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
from zoo_checks import Expected, MapChecks, Mapped

# The blocks, and those without an identity skip, by the definition of each. None of them nests blocks.
CLASSIFIERS = {
    "alexnet": Expected(0),
    "convnext_tiny": Expected(3 + 3 + 9 + 3),
    "densenet121": Expected(0),
    "efficientnet_b0": Expected(0 + 1 + 1 + 2 + 2 + 3 + 0),
    "googlenet": Expected(0),
    "inception_v3": Expected(0),
    # Every layer: an inverted residual, window attention, MLP, grid attention, MLP; the first of a stage strides.
    "maxvit_t": Expected((2 + 2 + 5 + 2) * 5, fitted=4),
    "mnasnet0_5": Expected(2 + 2 + 2 + 1 + 3 + 0),
    "mobilenet_v2": Expected(0 + 1 + 2 + 3 + 2 + 2 + 0),
    "mobilenet_v3_small": Expected(0 + 1 + 2 + 1 + 2),
    "regnet_y_400mf": Expected(1 + 3 + 6 + 6, fitted=4),
    "resnet18": Expected(2 + 2 + 2 + 2, fitted=3),
    "resnext50_32x4d": Expected(3 + 4 + 6 + 3, fitted=4),
    "shufflenet_v2_x0_5": Expected(0),
    "squeezenet1_0": Expected(0),
    "swin_t": Expected(2 * (2 + 2 + 6 + 2)),
    "swin_v2_t": Expected(2 * (2 + 2 + 6 + 2)),
    "vgg11_bn": Expected(0),
    "vit_b_16": Expected(2 * 12),
    "wide_resnet50_2": Expected(3 + 4 + 6 + 3, fitted=4),
}
VIDEO = {"mvit_v1_b": Expected(2 * 16, fitted=3 + 3), "r3d_18": Expected(2 + 2 + 2 + 2, fitted=3)}
QUICK = {"resnet18"}
# These two draw weights from a distribution that takes minutes unless told not to.
OPTIONS: dict[str, dict[str, Any]] = {"googlenet": {"init_weights": False}, "inception_v3": {"init_weights": False}}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.zoo) for name in CLASSIFIERS | VIDEO],
)
def mapped(request: pytest.FixtureRequest) -> Mapped:
    name = request.param
    model = torchvision.models.get_model(name, **OPTIONS.get(name, {}))
    size = 299 if name == "inception_v3" else 224
    images = torch.randn(2, 3, 16, 112, 112) if name in VIDEO else torch.randn(2, 3, size, size)
    if name == "mvit_v1_b":
        images = torch.randn(2, 3, 16, 224, 224)
    return Mapped.of(model, images, expected=(CLASSIFIERS | VIDEO)[name])


class TestTorchvision(MapChecks):
    pass
