"""Roles and names of norms, and normalizations that define an output, beyond what the gallery states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gallery import ROWS
from gallery.directions import UNITS
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written, linear_layers

import normless as nl
from normless import residual_map

WIDTH = 8
SEQUENCE = torch.randn(2, 3, WIDTH)


def written(forward: Callable[..., Any], names: str, **parts: Any) -> Written:
    return Written(forward, **linear_layers(names, WIDTH), **parts)


def ones() -> nn.Parameter:
    return nn.Parameter(torch.ones(WIDTH))


def test_a_norm_in_the_forward_code_is_named_by_its_gamma_and_a_scale_is_none() -> None:
    """Beside a plain scale and a normalization without γ."""

    def forward(m: Written, x: Tensor) -> Tensor:
        x = F.normalize(m.stem(x), dim=-1)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * m.g
        return x + m.f(y) * m.s

    found = residual_map(written(forward, "stem f", g=ones(), s=ones()), SEQUENCE[0])
    assert found.norms == {":g": "last"}
    assert found.by_path[":g"].gamma == "g"
    assert (found.by_path[":s"].kind, found.by_path[":s"].gamma) == ("scale", "s")


@pytest.mark.parametrize("scheme", ["none", "fixup", "dyt"])
@pytest.mark.parametrize("name", UNITS)
def test_a_learned_factor_of_unit_vectors_stays(name: str, scheme: str) -> None:
    model, (x,) = ROWS[name].network(), ROWS[name].example()[0]
    factor, *_ = UNITS[name][0].split()
    found = nl.residual_map(model, x)
    assert any(factor in path and "output" in reason for path, reason in found.directions.items())
    assert factor in str(found)
    converted = nl.convert(model, scheme, x)
    assert torch.equal(converted.get_parameter(factor), model.get_parameter(factor))
    assert any(one.path.endswith(factor) and "stays" in one.what for one in converted.normless.plan)  # type: ignore[union-attr]
    if name == "a unit embedding":
        torch.testing.assert_close(converted(x).norm(dim=-1), torch.full((len(x),), 5.0))
