"""Parameter groups of a converted network in a wrapper: those of the network, of the wrapper's own parameters."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from streams_of_networks import Network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import normless as nl
from normless.integrations import prepare

IMAGES = torch.randn(4, 3, 8, 8)
RATES: Any = {"lr": 0.1, "weight_decay": 1e-4}
# Stem, two blocks of two convolutions and the head are weights; the head has the only bias.
EXPECTED = [("weights", 6), ("biases", 1), ("scalars", 2)]

pytestmark = pytest.mark.filterwarnings("ignore")  # the wrappers' own


def compiled(net: nn.Module) -> Any:
    return torch.compile(net, backend="eager")


def with_accelerate(net: nn.Module) -> Any:
    accelerate = pytest.importorskip("accelerate")
    return accelerate.Accelerator(cpu=True).prepare(net)


def with_opacus(net: nn.Module) -> Any:
    opacus = pytest.importorskip("opacus")
    return opacus.GradSampleModule(prepare(net))


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "itself": lambda net: net,
    "pickled": lambda net: pickle.loads(pickle.dumps(net)),
    "DistributedDataParallel": DistributedDataParallel,
    "compiled": compiled,
    "DistributedDataParallel compiled": lambda net: compiled(DistributedDataParallel(net)),
    "accelerate": with_accelerate,
    "Opacus": with_opacus,
    "averaged": AveragedModel,
}


def assert_groups(groups: list[dict[str, Any]], wrapped: nn.Module) -> None:
    """The groups of the network, each parameter of the wrapper in one of them."""
    assert [(group["name"], len(group["params"])) for group in groups] == EXPECTED
    grouped = [id(one) for group in groups for one in group["params"]]
    assert sorted(grouped) == sorted(map(id, wrapped.parameters()))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_groups_of_a_wrapped_network_are_the_networks(name: str) -> None:
    net = nl.convert(Network(), "skipinit", IMAGES)
    wrapped = WRAPPERS[name](net)
    assert_groups(nl.param_groups(wrapped, **RATES), wrapped)
    assert nl.residual_map(net) == nl.residual_map(net, IMAGES)
