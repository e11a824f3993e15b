"""The set-ups of the texts: weights that schemes leave as drawn, where biases are, strides."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normless import convert
from normless.models import resnet_cifar, wide_resnet
from normless.schemes import SCHEMES
from normless_papers.experiments.de_smith import METHODS, built_wide_resnet
from normless_papers.kept_scale import without_kept_scale
from normless_papers.networks.seeded_inputs import convert as convert_as_published


def layers(network: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    return {name: module for name, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if without_kept_scale(name) != name])
def test_the_papers_schemes_leave_weights_as_drawn(scheme: str) -> None:
    # ZeroInit for ResNet-V1 needs the activation that comes after its sums.
    model = resnet_cifar(8) if scheme == "zeroinit_v1" else wide_resnet(depth=10, width=1, initialization=None)
    converted = convert_as_published(model, scheme)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and not (scheme == "remove_branches" and ".conv" in name):
            assert torch.equal(weight, converted.get_parameter(name)), name


WITH_BIASES = {"biases", "biases_and_dropout", "zeroinit", "zeroinit_without_l2", "regularized_skipinit"}


@pytest.mark.parametrize("method", METHODS)
def test_biases_are_on_every_layer_or_on_none(method: str) -> None:
    """ZeroInit, table 1 and section 4: "biases to each convolution and the classification layer", zero."""
    original = built_wide_resnet(16, 1)
    network = convert(original, METHODS[method]["scheme"])
    biases = {path: dict(network.get_submodule(path).named_parameters()).get("bias") for path in layers(original)}
    if method not in WITH_BIASES:
        assert set(biases.values()) == {None}
        return
    for bias, layer in zip(biases.values(), layers(original).values(), strict=True):
        assert bias is not None
        assert bias.shape == (len(layer.weight),)
        assert not bias.any()
