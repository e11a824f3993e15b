"""How a weight made of parameters scales with each of them; the oracle is the forward pass at two scales."""

from __future__ import annotations

from collections.abc import Callable
from math import log2

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl

RULES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "as it is": lambda w, g, u: w,
    "unit rows with a gain": lambda w, g, u: g * w / w.norm(dim=1, keepdim=True),
    "unit matrix": lambda w, g, u: w / torch.sqrt((w * w).sum()),
    "standardized": lambda w, g, u: (w - w.mean(1, keepdim=True)) / w.std(1, keepdim=True),
    "by batch norm": lambda w, g, u: F.batch_norm(w.t()[None].mT.reshape(1, 5, -1), None, None, training=True)[0],
    "spectral": lambda w, g, u: w / torch.dot(F.normalize(w @ F.normalize(w.t() @ u, dim=0), dim=0), w @ u),
    "product": lambda w, g, u: g * w,
}


def computed(rule: str) -> nn.Module:
    model = Written(
        lambda m, x: F.linear(x, RULES[rule](m.w, m.g, m.u)),
        w=nn.Parameter(torch.randn(5, 5)),
        g=nn.Parameter(torch.rand(5, 1) + 0.5),
    )
    model.register_buffer("u", torch.randn(5))
    return model


def degrees(model: nn.Module, x: Tensor) -> dict[str, float]:
    flow = nl.residual_map(model, x).flow
    assert flow is not None
    (linear,) = (operation for operation in flow.operations if operation.name == "linear")
    return dict(linear.fixed[0].degrees)


def measured(model: nn.Module, x: Tensor, name: str) -> float:
    """log₂ of how the output grows where one parameter doubles."""
    before = model(x).detach()
    with torch.no_grad():
        model.get_parameter(name).mul_(2)
    after = model(x).detach()
    with torch.no_grad():
        model.get_parameter(name).div_(2)
    return log2(float((after / before).median()))


@pytest.mark.parametrize("rule", RULES)
def test_degrees_are_those_of_the_forward_pass(rule: str) -> None:
    torch.manual_seed(0)
    model, x = computed(rule), torch.randn(3, 5)
    found = degrees(model, x)
    assert found
    for name, degree in found.items():
        assert degree == pytest.approx(measured(model, x, name), abs=1e-4), name
