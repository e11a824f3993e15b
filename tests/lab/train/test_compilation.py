"""Compilation by block: the same outputs and gradients, and code that does not grow with depth."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch._dynamo.utils import counters

import normless as nl
from normless.models import resnet_cifar
from normless.residual import residual_map
from normless_lab.train._execution import compile_blocks

# Of torch's compiler itself, where a module takes another path by it.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def test_blocks_of_one_structure_share_their_code(request: pytest.FixtureRequest) -> None:
    limit = torch._dynamo.config.recompile_limit
    request.addfinalizer(lambda: setattr(torch._dynamo.config, "recompile_limit", limit))
    torch._dynamo.reset()
    counters.clear()
    network, x = nl.convert(resnet_cifar(20), "fixup").double(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    twin = deepcopy(network)
    count = compile_blocks(network, residual_map=residual_map(network, x), backend="aot_eager")
    assert count == 9
    assert network.state_dict().keys() == twin.state_dict().keys()
    y, expected = network(x), twin(x)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
    for out in (y, expected):
        out.square().sum().backward()
    for one, other in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-7, atol=1e-9)
    # Three widths, and two blocks that change them.
    assert counters["stats"]["unique_graphs"] == 5
