"""The command of the demo with its sweep and its figures; small, since the whole takes a minute."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from command_outputs import check_output
from lab_helpers import Here

from normless.cli import main
from normless_lab.cli._demo import DEMO
from normless_lab.sweeps import Laboratory, Sweep

SMALL = {"data": "digits(train=128, test=64)", "epochs": 1}


def test_the_demo_writes_figures_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep.from_yaml(DEMO)
    axes = {
        "depth": {str(depth): {"model": f"normless:wide_resnet(depth={depth}, width=1)"} for depth in (16, 10)},
        "scheme": {name: sweep.axes["scheme"][name] for name in ("none", "batch_norm")},
    }
    small = replace(sweep, base={**sweep.base, **SMALL}, axes=axes)
    monkeypatch.setattr(Sweep, "from_yaml", lambda _: small)
    laboratory = partial(Laboratory, tmp_path / "out", executor=Here)
    monkeypatch.setattr("normless_lab.cli._sweep.laboratory_of", lambda _, listener: laboratory(listener=listener))
    out = tmp_path / "out"
    for _ in range(2):
        assert main(["demo", "--out", str(out), "--json"]) == 0
        printed = capsys.readouterr()
        facts = json.loads(printed.out)
        check_output("demo", facts)
    # The second demo trains nothing.
    assert printed.err == ""
    names = ["optimum.svg", "optimum.png", "skip-variance.svg", "skip-variance.png", "index.html"]
    assert facts["files"] == [str(out / name) for name in names]
    page = (out / "index.html").read_text("utf-8")
    for row in facts["optima"]:
        assert f">{100 * row['mean']:.1f} %</td>" in page
    assert page.count("<img") == 2
    assert {path.name for path in out.iterdir()} == {*names, "runs.sqlite", "work"}
