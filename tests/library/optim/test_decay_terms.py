"""The texts that say what decays: policies, groups, roles and patterns joined by +, in every kind of run."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from normless.models import resnet, transformer
from normless.optim import param_groups
from normless.optim.decay import GROUPS, POLICIES, SHORT, decays_of

TERMS = [*POLICIES, *GROUPS, *SHORT]


def decayed(model: nn.Module, policy: Any) -> set[str]:
    """The names of the parameters that decay."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups(model, lr=0.1, weight_decay=0.01, policy=policy)
    listed = [id(one) for group in groups for one in group["params"]]
    assert sorted(listed) == sorted(names)
    return {names[id(one)] for group in groups if group["weight_decay"] > 0 for one in group["params"]}


@given(st.lists(st.sampled_from(TERMS), min_size=1, max_size=5))
def test_a_sum_of_terms_decays_what_any_of_them_does(terms: list[str]) -> None:
    alone = [set(decays_of(term, 0.3)) for term in terms]
    together = decays_of("+".join(terms), 0.3)
    assert set(together) == set().union(*alone)
    assert set(together.values()) == {0.3}
    assert set(together) <= set(GROUPS)
    assert together == decays_of(" + ".join(reversed(terms)), 0.3)


def test_table_2_of_kim_et_al_column_by_column() -> None:
    """Weights, and weights with the γ of one role: the union is a partition of all γ, by module name on ResNet-18."""
    model = resnet(18, channels=4)
    weights = {name for name, one in model.named_parameters() if one.dim() > 1}
    assert decayed(model, "weights") == weights
    columns = {role: decayed(model, f"weights+{role}") - weights for role in ("last", "down", "stem", "other")}
    assert columns["stem"] == {"bn1.weight"}
    assert columns["down"] == {f"layer{stage}.0.downsample.1.weight" for stage in (2, 3, 4)}
    assert columns["last"] == {f"layer{stage}.{index}.bn2.weight" for stage in (1, 2, 3, 4) for index in (0, 1)}
    assert columns["other"] == {f"layer{stage}.{index}.bn1.weight" for stage in (1, 2, 3, 4) for index in (0, 1)}
    for one, other in itertools.combinations(columns.values(), 2):
        assert not one & other
    assert len(set().union(*columns.values())) == 20
    assert decayed(model, "weights+last+other") == decayed(model, "guidelines")


def test_a_pattern_takes_the_norms_of_one_kind_of_block() -> None:
    """γ_1 and γ_2 of a transformer block are both `last`: their names tell them apart."""
    model = transformer(30, layers=2, width=8, heads=2, feed_forward=8, norm="pre")
    weights = decayed(model, "weights")
    first = decayed(model, "weights+*attention.norm.weight") - weights
    second = decayed(model, "weights+*feed_forward.norm.weight") - weights
    assert len(first) == 2 + 4
    assert len(second) == 4
    assert first | second == decayed(model, "weights+last") - weights
    assert not first & second
    groups = param_groups(model, lr=0.1, weight_decay=0.01, policy="weights+*feed_forward.norm.weight")
    named = {group["name"]: (len(group["params"]), group["weight_decay"]) for group in groups}
    assert named["gamma_last"] == (6, 0.0)
    assert named["gamma_last:*feed_forward.norm.weight"] == (4, 0.01)


def test_a_pattern_goes_before_its_group_and_the_last_before_the_others() -> None:
    model = resnet(18, channels=4)
    policy = {"weights": True, "conv1.*": 0.5, "layer?.0.conv1.*": 0.25, "layer4.0.conv1.*": False}
    groups = param_groups(model, lr=0.1, weight_decay=0.01, policy=policy)
    found = {id(one): group["weight_decay"] for group in groups for one in group["params"]}
    assert found[id(model.conv1.weight)] == 0.5
    assert found[id(model.layer1[0].conv1.weight)] == 0.25
    assert found[id(model.layer4[0].conv1.weight)] == 0
    assert found[id(model.layer1[0].conv2.weight)] == 0.01
    with pytest.raises(ValueError, match=r"matches \*attention\*, encoder\.\*, or a later"):
        param_groups(model, lr=0.1, weight_decay=0.1, policy="weights+*attention*+encoder.*")
