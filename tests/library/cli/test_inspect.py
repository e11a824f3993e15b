"""`normless inspect`, and the inspection of a network that it prints."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from command_outputs import check_output
from gallery import ROWS
from matrix.case import changed, state_of

import normless as nl
from normless import residual_map
from normless.cli import main
from normless.cli._inspection import GroupSize, inspect_network
from normless.models import resnet_cifar
from normless.recording._passes import recorded
from normless.recording._tape import Tape
from normless.schemes import SCHEMES

Capture = pytest.CaptureFixture[str]


def _json(capsys: Capture, *words: str) -> dict:  # type: ignore[type-arg]
    assert main(["inspect", *words, "--json"]) == 0
    printed: dict = json.loads(capsys.readouterr().out)  # type: ignore[type-arg]
    check_output("inspect", printed)
    return printed


def test_json_is_the_map_with_totals_and_schemes(capsys: Capture) -> None:
    model = "normless:resnet_cifar(depth=8)"
    printed = _json(capsys, model)
    expected = json.loads(json.dumps(residual_map(resnet_cifar(8)).to_dict()))
    assert {key: printed[key] for key in expected} == expected
    assert {"model", "depth", "blocks", "norms", "unresolved"} <= set(printed)
    assert set(printed["blocks"][0]) >= {"name", "branch", "skip", "identity_skip", "norms", "m", "inner"}
    assert (printed["model"], printed["input"], printed["mode"]) == (model, [2, 3, 32, 32], "train")
    assert {*printed["schemes"], "trained"} == set(SCHEMES)


def test_groups_have_the_sizes_of_the_papers_network() -> None:
    """He et al.'s ResNet-20 by hand: 3·3·(3·16 + 6·16² + 16·32 + 5·32² + 32·64 + 5·64²) + 640 weights."""
    found = inspect_network(resnet_cifar(20), schemes=())
    channels = [16] * 6 + [32] * 6 + [64] * 6
    weights = 9 * (3 * 16 + 6 * 16**2 + 16 * 32 + 5 * 32**2 + 32 * 64 + 5 * 64**2) + 640
    last = sum(channels) // 2
    assert found.groups == (
        GroupSize("weights", 20, weights, True),
        GroupSize("gamma_last", 9, last, True),
        GroupSize("gamma_stem", 1, 16, False),
        GroupSize("gamma_other", 9, last, True),
        GroupSize("biases", 20, 16 + sum(channels) + 10, False),
    )
    assert sum(group.parameters for group in found.groups) == 269_722


def test_a_network_is_traced_once_and_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def counted(*given: Any) -> Tape:
        traced.append(given)
        return recorded(*given)

    monkeypatch.setattr("normless.residual._reader.recorded", counted)
    model, (x,) = ROWS["TabularResNet"].network().eval(), ROWS["TabularResNet"].example()[0]
    before = state_of(model)
    found = inspect_network(model, x)
    assert len(traced) == 1
    # Schemes that draw weights take random numbers.
    assert set(changed(before, state_of(model))) <= {"torch's random state"}
    assert not any(module.training for module in model.modules())
    plans = {item.scheme: item for item in found.schemes}
    without = {"KeepScale(weights='fresh')": 1, "RemoveNorms()": 3}
    assert plans["none"].by_edit == without
    assert plans["skipinit"].by_edit == without | {"BranchMultiplier(init=0.0)": 2}
    assert plans["sqrt2"].by_edit == without | {"ScaleSums(factor=0.7071067811865475)": 2}
    assert "deepnorm" in str(plans["deepnorm"].reason).lower()


def test_a_scheme_that_runs_the_network_is_planned_by_name_only() -> None:
    model, (x,) = ROWS["TabularResNet"].network(), ROWS["TabularResNet"].example()[0]
    # An iterator, since the pass of the map restores the lists of hooks.
    passes = count()

    def counted(*_: Any) -> None:
        next(passes)

    model.register_forward_hook(counted)
    listed = {item.scheme: item for item in inspect_network(model, x).schemes}
    assert next(passes) == 1
    assert not listed["lsuv"].changes
    assert "--schemes lsuv" in str(listed["lsuv"].reason)
    (named,) = inspect_network(model, x, schemes=["lsuv"]).schemes
    assert named.reason is None
    assert [change.path for change in named.changes] == [change.path for change in nl.plan(model, "lsuv", x)]
