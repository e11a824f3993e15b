"""The papers' schemes leave the weights as their texts draw them."""

from __future__ import annotations

import pytest
import torch

from normless.models import resnet_cifar, wide_resnet
from normless.schemes import SCHEMES
from normless_lab.sweeps import without_kept_scale
from normless_papers.networks.published_schemes import convert


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if without_kept_scale(name) != name])
def test_weights_stay_as_drawn(scheme: str) -> None:
    # ZeroInit for ResNet-V1 needs the activation that comes after its sums.
    model = resnet_cifar(8) if scheme == "zeroinit_v1" else wide_resnet(depth=10, width=1, initialization=None)
    converted = convert(model, scheme)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and not (scheme == "remove_branches" and ".conv" in name):
            assert torch.equal(weight, converted.get_parameter(name)), name
