"""`normless inspect`, and the inspection of a network that it prints."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command_outputs import check_output
from gallery import ROWS
from matrix.case import changed, state_of

from normless import residual_map
from normless.cli import main
from normless.cli._inspection import inspect_network
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
