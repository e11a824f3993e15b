"""Which parameters decay by default depends on the kind of network; hidden matrices for Muon."""

from __future__ import annotations

import pytest
from gallery import ROWS
from torch import Tensor, nn

import normless as nl

RATES = {"lr": 0.1, "weight_decay": 0.01}
# A row of the gallery, a scheme, whether γ at branch ends decays, and words of the reason.
KINDS: list[tuple[str, str, bool, str]] = [
    ("CifarResNet", "as_written", True, "batch norms"),
    ("cifar 8", "ghost_batch_norm(size=2)", True, "batch norms"),
    ("GPT", "as_written", False, "h.0.ln1 is not a batch norm"),
    ("cifar 8", "group_norm(groups=4)", False, "not a batch norm"),
    ("Conformer", "as_written", False, "is not a batch norm"),
    ("DenseNet", "as_written", False, "no residual blocks"),
]


def built(name: str, text: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    inputs, _ = ROWS[name].example()
    return nl.convert(ROWS[name].network(), text, *inputs), inputs


@pytest.mark.parametrize(("name", "text", "expected", "reason"), KINDS)
def test_gamma_decays_in_residual_networks_with_batch_norms_and_nowhere_else(
    name: str, text: str, expected: bool, reason: str
) -> None:
    model, inputs = built(name, text)
    for arguments in ({}, {"policy": "guidelines"}):
        groups = nl.param_groups(model, *inputs, **RATES, **arguments)
        decayed = {group["name"] for group in groups if group["weight_decay"]}
        norms = {"gamma_last", "gamma_other"} & {group["name"] for group in groups}
        assert decayed - {"weights"} == (norms if expected else set())
        assert reason in str(groups)
    forced = nl.param_groups(model, *inputs, **RATES, policy="weights+last")
    assert all(group["weight_decay"] for group in forced if group["name"] == "gamma_last")
    assert "guidelines" not in str(forced)


@pytest.mark.parametrize("name", ["TwoTowers", "softplus of a scale"])
def test_temperatures_decay_only_where_they_are_named(name: str) -> None:
    model, (inputs, _) = ROWS[name].network(), ROWS[name].example()
    expected = {"TwoTowers": {"logit_scale"}, "softplus of a scale": {"scale"}}
    names = {id(one): key for key, one in model.named_parameters()}
    for policy in ("guidelines", "weights", "all", "all+temperatures"):
        groups = nl.param_groups(model, *inputs, **RATES, policy=policy)
        (group,) = [one for one in groups if one["name"] == "temperatures"]
        assert {names[id(one)] for one in group["params"]} == expected[name]
        assert bool(group["weight_decay"]) == (policy == "all+temperatures")


# The embeddings and the heads that Muon does not train.
SPLITS: dict[str, tuple[set[str], set[str]]] = {
    "GPT": ({"wte.weight", "wpe.weight"}, set()),
    "PostNormGPT": ({"wte.weight", "wpe.weight"}, {"lm_head.weight"}),
    "hf GPT-2": ({"transformer.wte.weight", "transformer.wpe.weight"}, set()),
    "TabularResNet": ({"enter.weight"}, {"head.2.weight"}),
    "CifarResNet": ({"stem.0.weight"}, {"fc.weight"}),
}


@pytest.mark.parametrize("name", SPLITS)
def test_hidden_matrices_are_muons(name: str) -> None:
    embedding, head = SPLITS[name]
    model, (inputs, kwargs) = ROWS[name].network(), ROWS[name].example()
    given = kwargs or inputs
    groups = nl.param_groups(model, example_inputs=given, lr=1e-3, muon_lr=0.02, weight_decay=0.1)
    names = {id(one): key for key, one in model.named_parameters()}
    found = {group["name"]: {names[id(one)] for one in group["params"]} for group in groups}
    matrices = {key for key, one in model.named_parameters() if one.dim() == 2}
    assert found.get("embedding", set()) == embedding
    assert found.get("head", set()) == head
    assert found.get("weights", set()) == {key for key, one in model.named_parameters() if one.dim() > 2} - embedding
    assert found.get("hidden", set()) == matrices - embedding - head
    assert {group["lr"] for group in groups.muon} <= {0.02}
    assert {group["lr"] for group in groups.rest} == {1e-3}
    assert {group["weight_decay"] for group in groups if group["name"] in ("hidden", "embedding", "head")} == {0.1}
    listed = [id(one) for part in (groups.muon, groups.rest) for group in part for one in group["params"]]
    assert sorted(listed) == sorted(names)
    assert not groups.muon or "hidden" in str(groups)
