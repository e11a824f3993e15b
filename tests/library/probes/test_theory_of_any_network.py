"""Predicted moments on networks of every kind: right where known, NaN where not, known again after a norm."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written, linear_layers

import normless as nl
from normless.models import resnet_cifar, wide_resnet
from normless.probes import predicted_moments

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


@pytest.mark.parametrize("scheme", ["fixup", "none"])
def test_the_stream_of_resnet_v1_is_rectified_again_and_again(scheme: str) -> None:
    """Blocks up to the first padded skip path; a branch of zero leaves the stream as it is."""
    ratios = []
    for seed in range(5):
        torch.manual_seed(seed)
        table = nl.probe(nl.convert(resnet_cifar(20), scheme), torch.randn(16, 3, 12, 12), ["signal"]).signal.head(3)
        ratios.append((table["sum_second_moment"] / table["predicted_sum_second_moment"]).to_numpy())
    assert np.mean(ratios, axis=0) == pytest.approx(np.ones(3), abs=0.06)


def test_scalar_biases_around_activations_are_predicted() -> None:
    """Fixup's biases away from zero, before and after each ReLU of the stream and the branches."""
    ratios = []
    for seed in range(5):
        torch.manual_seed(seed)
        model = nl.convert(resnet_cifar(20), "fixup(zero=False)")
        for name, bias in model.named_parameters():
            if "relu" in name:
                nn.init.constant_(bias, -0.2 if name.endswith("input_bias") else 0.3)
        table = nl.probe(model, torch.randn(16, 3, 12, 12), ["signal"]).signal.head(3)
        ratios.append([table[side] / table[f"predicted_{side}"] for side in ("sum_second_moment", "branch_variance")])
    assert np.mean(ratios, axis=0) == pytest.approx(np.ones((2, 3)), abs=0.1)


def in_place(m: Written, x: Tensor) -> Tensor:
    """A block of ResNet-V1 as torchvision writes it: the sum and its ReLU overwrite what they read."""
    y = m.norm(m.conv(x))
    y += x
    return m.relu(y)


def test_sums_and_activations_in_place() -> None:
    blocks = (
        Written(in_place, conv=nn.Linear(300, 300), norm=nn.BatchNorm1d(300), relu=nn.ReLU(inplace=True))
        for _ in range(4)
    )
    table = nl.probe(nn.Sequential(*blocks), torch.randn(200, 300), ["signal"]).signal
    assert np.allclose(table["predicted_skip_second_moment"], table["skip_second_moment"], rtol=0.05)
    assert np.allclose(table["predicted_sum_second_moment"], table["sum_second_moment"], rtol=0.05)


def test_a_transformer_is_nan_where_attention_is_and_known_after_norms() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0, activation=nn.ReLU())
    model = nn.Sequential(nn.Linear(8, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    x = torch.randn(4, 6, 8)
    found = nl.residual_map(model, x)
    moments = predicted_moments(model, found, x)
    assert [isnan(one.total) for one in moments] == [True, False, True, False]
    table = nl.probe(model, x, ["signal"], residual_map=found).signal
    assert table["sum_second_moment"][1] == pytest.approx(moments[1].total, rel=0.25)
    assert isnan(moments[1].skip_variance)


def test_inputs_in_a_dictionary_and_of_whole_numbers() -> None:
    model = Written(
        lambda m, ids: (x := m.embedding(ids)) + m.two(F.relu(m.one(m.norm(x)))),
        embedding=nn.Embedding(10, 200),
        norm=nn.LayerNorm(200),
        **linear_layers("one two", 200),
    )
    table = nl.probe(model, {"ids": torch.randint(0, 10, (8, 12))}, ["signal"]).signal
    assert table["predicted_skip_variance"].isna().all()
    assert table["predicted_branch_second_moment"][0] == pytest.approx(table["branch_second_moment"][0], rel=0.2)
