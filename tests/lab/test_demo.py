"""The demo from end to end, small: its JSON, its files, and what its page says."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from normless.lab.demo import DemoResult, plan_runs, runs_table
from normless.lab.demo_report import finding
from normless.lab.run import DemoRun, RunRecord
from normless.lab.settings import DemoSettings

FLAGS = "--depths 16 10 --schemes none batch_norm --epochs 1 --seed 3 --rate 0.05 --batch-size 64 --json"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A small demo as its own program, run in an empty folder."""
    program = "from normless.cli import main; raise SystemExit(main())"
    command = [sys.executable, "-c", program, "demo", *FLAGS.split(), "--out", "out"]
    folder = tmp_path_factory.mktemp("demo")
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    process.args = folder
    return process


@pytest.fixture
def printed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture
def page(done: subprocess.CompletedProcess[str], printed: dict[str, Any]) -> str:
    return html.unescape((Path(done.args) / printed["report"]).read_text("utf-8"))


def test_json_has_every_run_once_by_depth(printed: dict[str, Any]) -> None:
    runs = printed["runs"]
    assert [(run["depth"], run["scheme"]) for run in runs] == [
        (10, "none"),
        (10, "batch_norm"),
        (16, "none"),
        (16, "batch_norm"),
    ]
    for run in runs:
        assert run["outcome"] in ("trained", "chance", "diverged")
        assert 0 <= run["test_accuracy"] <= 1
        assert run["seconds_per_epoch"] > 0
        assert (run["seed"], run["epochs"], run["rate"]) == (3, 1, 0.05)


def test_figures_and_page_are_where_json_says(
    done: subprocess.CompletedProcess[str], printed: dict[str, Any]
) -> None:
    folder = Path(done.args)
    assert printed["figures"] == [
        f"out/{name}.{kind}" for name in ("accuracy", "skip-variance") for kind in ("svg", "png")
    ]
    for path in printed["figures"]:
        assert (folder / path).stat().st_size > 0
        if path.endswith("png"):
            with Image.open(folder / path) as image:
                assert image.width > image.height > 400
    assert sorted(path.name for path in (folder / "out" / "runs").iterdir()) == [
        "depth-10-batch_norm",
        "depth-10-none",
        "depth-16-batch_norm",
        "depth-16-none",
    ]


def test_progress_goes_to_standard_error(done: subprocess.CompletedProcess[str], printed: dict[str, Any]) -> None:
    lines = done.stderr.splitlines()
    for run in printed["runs"]:
        name = f"depth {run['depth']}, {run['scheme']}: "
        told = [line.removeprefix(name) for line in lines if line.startswith(name)]
        accuracy = f"test accuracy {100 * run['test_accuracy']:.1f} %"
        assert told[0] == f"epoch 1/1, {accuracy}"
        assert told[1].startswith(f"{run['outcome']}, {accuracy} (")
    assert "(4 of 4 runs)" in done.stderr


def test_the_page_says_every_number_and_how_it_was_measured(page: str, printed: dict[str, Any]) -> None:
    for run in printed["runs"]:
        row = (run["outcome"], f"{100 * run['test_accuracy']:.1f} %", f"{run['seconds_per_epoch']:.2f}")
        for cell in row:
            assert f">{cell}</td>" in page
    for fact in ("scikit-learn", "batch size 64", "rate 0.05", "3, the same", "torch ", "normless ", "cores"):
        assert fact in page
    assert "does not claim the papers’ numbers" in page
    assert page.count("<svg") == 2
    assert not [part for part in page.split("://")[:-1] if part.endswith("http")]


def test_the_longest_runs_come_first_and_the_deepest_measure_the_signal() -> None:
    settings = DemoSettings(depths=(16, 40, 10), schemes=("skipinit", "none"))
    runs = plan_runs(settings)
    assert [(run.depth, run.scheme) for run in runs] == [
        (depth, scheme) for depth in (40, 16, 10) for scheme in ("skipinit", "none")
    ]
    assert [run.measures_signal for run in runs] == [True, True, False, False, False, False]
    assert str(runs[0]) == "depth 40, skipinit"


def _record(settings: DemoSettings, depth: int, scheme: str, outcome: str, accuracy: float) -> RunRecord:
    return RunRecord(DemoRun(settings, depth, scheme, False), outcome, 3, accuracy, 1.5, None)


def test_the_finding_tells_the_outcomes_of_the_deepest() -> None:
    settings = DemoSettings(depths=(16, 100))
    records = [
        _record(settings, 100, "none", "diverged", 0.1),
        _record(settings, 100, "sqrt2", "chance", 0.1),
        _record(settings, 100, "skipinit", "trained", 0.9),
        _record(settings, 100, "fixup", "trained", 0.81),
        _record(settings, 16, "none", "trained", 0.7),
    ]
    table = runs_table(settings, records)
    assert list(table["depth"]) == [16, 100, 100, 100, 100]
    assert finding(table) == (
        "At 100 layers and one learning rate for all, skipinit (90.0 %) and fixup (81.0 %) trained; "
        "sqrt2 stayed at chance; the bare network diverged."
    )


def test_json_has_no_number_that_json_has_not(tmp_path: Path) -> None:
    settings = DemoSettings(depths=(16,))
    table = runs_table(settings, [_record(settings, 16, "none", "diverged", float("nan"))])
    result = DemoResult(settings, table, pd.DataFrame(), (tmp_path / "a.svg",), tmp_path / "index.html")
    text = json.dumps(result.to_dict(), allow_nan=False)
    assert json.loads(text)["runs"][0]["test_accuracy"] is None
    assert np.isclose(json.loads(text)["runs"][0]["seconds_per_epoch"], 1.5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epochs": 0}, "Expected epochs above 0, got 0"),
        ({"workers": 0}, "Expected workers above 0, got 0"),
        ({"depths": ()}, "Expected depths to be one or more different values"),
        ({"depths": (17,)}, "the nearest is 16"),
        ({"schemes": ("skipinit", "skipinit")}, "Expected schemes to be one or more different values"),
        ({"schemes": ("nosuch",)}, "nosuch"),
        ({"out": Path(__file__)}, "is a file; name another with --out"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DemoSettings(**settings)
