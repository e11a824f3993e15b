"""Predicted moments on networks of every kind: right where known, NaN where not, known again after a norm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written, linear_layers

import normless as nl
from normless.models import wide_resnet

KINDS: dict[str, Callable[[Written, Tensor, Tensor], Tensor]] = {
    "plain": lambda m, x, h: x + h,
    "gate": lambda m, x, h: x + h * torch.sigmoid(m.gate(h)),
    "scale": lambda m, x, h: x + h * m.scale,
    "dropout": lambda m, x, h: x + m.drop(h),
    "pool": lambda m, x, h: x + F.avg_pool1d(h.unsqueeze(1), 3, 1, 1).squeeze(1),
    "sorted": lambda m, x, h: x + h.sort(dim=1).values,
    "two": lambda m, x, h: x + h + m.gate(x),
}


def block(kind: str, width: int = 300) -> nn.Module:
    """Pre-activation in forward code alone: x + scale · W₂ relu(W₁ relu(norm(x)))."""
    return Written(
        lambda m, x: KINDS[kind](m, x, m.two(F.relu(m.one(F.relu(m.norm(x)))))),
        **linear_layers("one two gate", width),
        norm=nn.BatchNorm1d(width),
        drop=nn.Dropout(0.5),
        scale=nn.Parameter(torch.full((width,), 0.5)),
    )


def network(*kinds: str) -> nn.Module:
    return nn.Sequential(nn.Linear(50, 300), *(block(kind) for kind in kinds), nn.Linear(300, 3))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sorted"])
def test_functional_layers_factors_dropout_gates_poolings_and_several_branches_are_predicted(kind: str) -> None:
    table = nl.probe(network(kind, kind), torch.randn(400, 50), ["signal"]).signal
    for side in ("skip", "branch", "sum"):
        assert np.allclose(table[f"predicted_{side}_second_moment"], table[f"{side}_second_moment"], rtol=0.08), side
        assert np.allclose(table[f"predicted_{side}_variance"], table[f"{side}_variance"], rtol=0.08), side


def test_what_is_unknown_is_nan_until_a_norm() -> None:
    table = nl.probe(network("plain", "sorted", "plain"), torch.randn(64, 50), ["signal"]).signal
    assert table["predicted_skip_variance"].notna().tolist() == [True, True, False]
    assert table["predicted_branch_variance"].notna().tolist() == [True, False, True]
    assert table["predicted_branch_variance"][2] == pytest.approx(table["branch_variance"][2], rel=0.15)


@pytest.mark.parametrize("scheme", ["batch_norm", "group_norm(groups=4)", "nf_resnet(multiplier=False)"])
def test_wide_resnets_under_every_kind_of_norm(scheme: str) -> None:
    """Measured over predicted, means of three draws: standardized weights too, whose rows sum to zero."""
    ratios: dict[str, list[float]] = {}
    for seed in range(3):
        torch.manual_seed(seed)
        table = nl.probe(nl.convert(wide_resnet(16, 4), scheme), torch.randn(16, 3, 12, 12), ["signal"]).signal
        for side in ("skip_variance", "branch_variance", "sum_second_moment", "norm_variance"):
            known = table[table[f"predicted_{side}"].notna()]
            ratios.setdefault(side, []).extend(known[side] / known[f"predicted_{side}"])
    for side, found in ratios.items():
        if found:
            assert np.mean(found) == pytest.approx(1, abs=0.05), side
