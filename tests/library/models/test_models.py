"""The reference networks: shapes, parameter counts, initialization."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normless import convert, residual_map
from normless.models import dense, resnet_cifar, wide_resnet
from normless.models._spec import build_model


@pytest.mark.parametrize(("depth", "parameters"), [(20, 269_722), (56, 853_018), (110, 1_727_962)])
def test_resnet_cifar_has_the_parameters_of_the_original(depth: int, parameters: int) -> None:
    """0.27M, 0.85M and 1.7M in He et al. (2016), table 6; exactly: two more per norm and channel."""
    model = resnet_cifar(depth)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_wide_resnet_16_4_has_2_7_million_parameters() -> None:
    """Zagoruyko & Komodakis (2016), table 2: WRN-16-4 has 2.7M."""
    total = sum(parameter.numel() for parameter in wide_resnet(16, 4).parameters())
    assert round(total / 1e6, 1) == 2.7


@pytest.mark.parametrize(("relu", "gain"), [(True, 2), (False, 1)])
def test_dense_layers_have_he_or_lecun_variance_by_fan_in(relu: bool, gain: int) -> None:
    model = dense(1, 400, in_features=100, relu=relu)
    assert model.stem.linear1.weight.var().item() == pytest.approx(gain / 100, rel=0.05)
    assert model.blocks[0].branch.linear1.weight.var().item() == pytest.approx(gain / 400, rel=0.05)


def test_specs_build_fitted_networks() -> None:
    model = build_model("normless:wide_resnet(depth=10, width=1)", classes=7, image_shape=(1, 8, 8))
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 7)
    model = build_model("normless:dense(depth=1, width=5, classes=3)", classes=7, image_shape=(1, 8, 8))
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert build_model("torchvision:resnet18", classes=4).fc.out_features == 4
    assert build_model("timm:resnet10t(num_classes=6)", image_shape=(1, 8, 8)).num_classes == 6


@pytest.mark.parametrize(("layers", "blocks"), [(100, 48), pytest.param(10_000, 4998, marks=pytest.mark.slow)])
def test_a_network_of_thousands_of_layers_takes_a_step(layers: int, blocks: int) -> None:
    model = convert(wide_resnet(layers, 1, in_channels=1), "skipinit")
    assert residual_map(model).depth == blocks
    late = model.blocks[4 * blocks // 5].conv2
    before = late.multiplier.clone()
    loss = nn.functional.cross_entropy(model(torch.randn(2, 1, 8, 8)), torch.tensor([0, 1]))
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert torch.isfinite(loss)
    assert not torch.equal(late.multiplier, before)
