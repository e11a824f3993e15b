"""Normalizations that define an output, beyond the gallery's goldens."""

from __future__ import annotations

import pytest
import torch
from gallery import ROWS
from gallery.directions import UNITS

import normless as nl


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
