"""Normalizations that define an output, or compare queries and keys, are not norms of the trunk: they stay.

Their maps and plans, and the heads that Fixup leaves, are snapshots of the gallery.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gallery import ROWS
from gallery.directions import Heads
from torch import nn

import normless as nl

# The learned factor, and the largest output.
COSINES = {
    "cosine classifier": ("scale", 5.0),
    "its weight by linear": ("scale", 5.0),
    "an exponential": ("log_scale", 4.5),
    "cosines by einsum": ("scale", 5.0),
    "softplus of a scale": ("scale", 5.1),
    "a unit embedding": ("scale", 5.0),
}


@pytest.mark.parametrize(("name", "scheme"), [*zip(COSINES, ["none", "fixup", "dyt"] * 2, strict=True)])
def test_a_learned_factor_of_unit_vectors_stays(name: str, scheme: str) -> None:
    model, (inputs, _), (factor, bound) = ROWS[name].network(), ROWS[name].example(), COSINES[name]
    found = nl.residual_map(model, *inputs)
    assert any(factor in path and "output" in reason for path, reason in found.directions.items())
    assert factor in str(found)
    net = nl.convert(model, scheme, *inputs, residual_map=found)
    assert torch.equal(net.get_parameter(factor), model.get_parameter(factor))
    outputs = net(*inputs).detach()
    assert outputs.abs().max() <= bound
    if name == "a unit embedding":
        assert torch.allclose(outputs.norm(dim=-1), torch.tensor(5.0))
    plan = nl.plan(model, scheme, *inputs, residual_map=found)
    assert any(change.path.endswith(factor) and "stays" in change.what for change in plan)


@pytest.mark.parametrize(
    ("row", "scheme"),
    [("layer, softmax", "fixup"), ("layer, einsum", "dyt"), ("rms, rotated", "dyt"), ("tau, einsum", "none")],
)
def test_norms_of_queries_and_keys_stay_unless_asked(row: str, scheme: str) -> None:
    kind, _, logits = row.partition(", ")
    stated = ROWS[f"{kind} norms of queries and keys, {logits}"]
    model, (inputs, _) = stated.network(), stated.example()
    found = nl.residual_map(model, *inputs)
    assert found.directions
    assert all("queries" in reason for reason in found.directions.values())
    net = nl.convert(model, scheme, *inputs, residual_map=found)
    own = {key for key in model.state_dict() if ".own." in key or "tau" in key}
    assert own <= {*net.state_dict()}
    assert scheme == "dyt" or not any("1.norm." in key for key in net.state_dict())
    if kind == "rms":
        net = nl.convert(model, "none(norms=all)", *inputs, residual_map=found)
        assert not any(isinstance(module, (nn.RMSNorm, nn.LayerNorm)) for module in net.modules())
        assert not own & {*net.state_dict()}


def test_a_mean_of_halved_probabilities_is_made_of_logits() -> None:
    model: Any = Heads(lambda a: (a.sigmoid() / 2).mean(0), 1)
    x = torch.randn(6, 6)
    found = nl.residual_map(model, x)
    assert (found.classifier, [head.obstacle for head in found.heads]) == ("heads.0", [""])
    assert not nl.convert(model, "fixup", x).heads[0].weight.any()


def test_a_weight_that_its_own_module_normalizes_never_starts_at_zero() -> None:
    model, (inputs, _) = ROWS["a cosine layer"].network(), ROWS["a cosine layer"].example()
    net = nl.convert(model, "fixup", *inputs)
    assert torch.equal(net.get_parameter("1.weight"), model.get_parameter("1.weight"))
