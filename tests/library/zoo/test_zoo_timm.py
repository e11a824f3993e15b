"""One network of each of timm's architecture modules: its map, held against a count by hand."""

from __future__ import annotations

import pytest
import timm
from zoo_checks import Expected, MapChecks, Mapped
from zoo_networks import BY_NAME, ZOO

# A few seconds each, and no two of one kind: what `make test` sees of the sweep, the rest being `make zoo`.
QUICK = {"test_byobnet", "test_convnext", "test_nfnet", "test_resnet", "test_vit"}


@pytest.fixture(
    scope="module", params=[pytest.param(one.name, marks=() if one.name in QUICK else pytest.mark.zoo) for one in ZOO]
)
def mapped(request: pytest.FixtureRequest) -> Mapped:
    network = BY_NAME[request.param]
    if not timm.is_model(network.name):
        pytest.skip(f"timm {timm.__version__} has no {network.name}")
    model = network.build()
    expected = Expected(network.blocks, network.inner, network.fitted)
    return Mapped.of(model, network.images(model), expected=expected)


class TestTimm(MapChecks):
    pass


def test_every_architecture_module_has_a_network() -> None:
    # A newer timm has more: add a network of each to the table, with its blocks counted.
    assert set(timm.list_modules()) - {network.module for network in ZOO} == set()
