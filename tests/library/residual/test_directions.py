"""Normalizations that define an output, or compare queries and keys, and heads, beyond the gallery's goldens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gallery import ROWS
from gallery.directions import UNITS, Heads
from torch import Tensor

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


@pytest.mark.parametrize(("normed", "logits"), [("layer", "einsum"), ("rms", "rotated")])
def test_norms_of_queries_and_keys_stay_unless_asked(normed: str, logits: str) -> None:
    row = ROWS[f"{normed} norms of queries and keys, {logits}"]
    model, (x,) = row.network(), row.example()[0]
    kept = {key for key in model.state_dict() if normed in key}
    assert kept
    assert kept <= set(nl.convert(model, "dyt", x).state_dict())
    every = nl.convert(model, "none(norms=all)", x).state_dict()
    assert not [key for key in every if ".norm." in key or f".{normed}." in key]


@pytest.mark.parametrize("join", [lambda a: a, lambda a: (a.sigmoid() / 2).mean(0)])
def test_one_head_of_logits_starts_at_zero(join: Callable[..., Tensor]) -> None:
    model, x = Heads(join, 1), torch.randn(6, 6)
    (head,) = nl.residual_map(model, x).heads
    assert (head.path, head.obstacle) == ("heads.0", "")
    assert not nl.convert(model, "fixup", x).heads[0].weight.any()
