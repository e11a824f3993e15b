"""The demo from end to end, small: its JSON, its files, and what its page says."""

from __future__ import annotations

import html
import json
import math
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from normless.demo.run import DemoRun, RunRecord, train_run
from normless.demo.search import DemoError, DemoSearch, best_of_each
from PIL import Image

from normless.demo.demo import DemoResult, rates_table, runs_table
from normless.demo.report import finding
from normless.demo.settings import DemoSettings
from normless.sweeps.progress import DemoProgress
from normless.train import train

FLAGS = "--depths 16 10 --schemes none batch_norm --epochs 2 --seed 3 --rates 0.05 0.2 --batch-size 128 --json"


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


def test_json_has_each_network_once_at_the_rate_with_the_lowest_training_loss(printed: dict[str, Any]) -> None:
    networks = [(depth, scheme) for depth in (10, 16) for scheme in ("none", "batch_norm")]
    assert [(run["depth"], run["scheme"]) for run in printed["runs"]] == networks
    for run in printed["runs"]:
        assert run["outcome"] in ("trained", "untrained", "diverged")
        assert 0 <= run["test_accuracy"] <= 1
        assert run["seconds_per_epoch"] > 0
        assert (run["seed"], run["epochs"]) == (3, 2)
        losses = {
            tried["rate"]: math.inf if tried["training_loss"] is None else tried["training_loss"]
            for tried in printed["tried"]
            if (tried["depth"], tried["scheme"]) == (run["depth"], run["scheme"])
        }
        assert sorted(losses) == [0.05, 0.2]
        assert run["rate"] in (None, min(losses, key=losses.__getitem__))
    assert len(printed["tried"]) == 8


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
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        *("accuracy.png", "accuracy.svg", "index.html", "skip-variance.png", "skip-variance.svg"),
    ]


def test_progress_goes_to_standard_error(done: subprocess.CompletedProcess[str], printed: dict[str, Any]) -> None:
    lines = done.stderr.splitlines()
    for tried in printed["tried"]:
        loss = "diverged" if tried["training_loss"] is None else f"training loss {tried['training_loss']:.3f}"
        assert f"  depth {tried['depth']}, {tried['scheme']}, rate {tried['rate']:g}: {loss}" in lines
    for stage in ("first epoch: 8 runs", "best rates, to the end: 4 runs"):
        assert stage in lines


def test_the_page_says_every_number_and_how_it_was_measured(page: str, printed: dict[str, Any]) -> None:
    for run in printed["runs"]:
        row = (run["outcome"], f"{100 * run['test_accuracy']:.1f} %", f"{run['seconds_per_epoch']:.2f}")
        for cell in row:
            assert f">{cell}</td>" in page
    for tried in printed["tried"]:
        loss = tried["training_loss"]
        assert f">{'diverged' if loss is None else format(loss, '.3f')}</td>" in page
    for fact in ("scikit-learn", "batch size 128", "0.05, 0.2", "3, the same", "torch ", "normless ", "cores"):
        assert fact in page
    assert "does not claim the papers’ numbers" in page
    assert page.count("<svg") == 2
    assert not [part for part in page.split("://")[:-1] if part.endswith("http")]


def _record(
    depth: int, scheme: str, rate: float, loss: float, accuracy: float = 0.5, settings: DemoSettings | None = None
) -> RunRecord:
    return RunRecord(DemoRun(settings or DemoSettings(), depth, scheme, rate), loss, accuracy, 1.5)


class Known:
    """Says of every run the loss that is known of its depth, scheme and rate; trains nothing."""

    window = 1

    def __init__(self, losses: dict[tuple[int, str, float], float]) -> None:
        self.losses = losses
        self.asked: list[tuple[int, int, str, float]] = []

    def submit(self, function: Any, run: DemoRun, folder: Path, epochs: int) -> Future[RunRecord]:
        self.asked.append((epochs, run.depth, run.scheme, run.rate))
        future: Future[RunRecord] = Future()
        loss = self.losses.get((run.depth, run.scheme, run.rate))
        if loss is None:
            future.set_exception(ArithmeticError("no such number"))
        else:
            future.set_result(RunRecord(run, loss, 0.5, 1.0))
        return future


def _search(settings: DemoSettings, known: Known) -> tuple[list[RunRecord], list[RunRecord]]:
    with DemoProgress() as progress:
        return DemoSearch(settings, known, Path(), progress).carry_out()  # type: ignore[arg-type]


def test_the_best_rate_of_an_epoch_goes_on() -> None:
    losses = {
        (10, "none", 0.1): 2.0,
        (10, "none", 0.2): 1.0,
        (10, "none", 0.4): 3.0,
        (16, "none", 0.1): 2.0,
        (16, "none", 0.2): math.inf,
        (16, "none", 0.4): 1.5,
        (22, "none", 0.1): math.inf,
        (22, "none", 0.2): math.inf,
        (22, "none", 0.4): math.inf,
    }
    known = Known(losses)
    tried, finished = _search(DemoSettings(depths=(22, 10, 16), schemes=("none",), rates=(0.1, 0.2, 0.4)), known)
    assert {(one.run.depth, one.run.scheme, one.run.rate): one.training_loss for one in tried} == losses
    assert [(one.run.depth, one.run.rate) for one in finished] == [(10, 0.2), (16, 0.4), (22, 0.1)]
    # The longest run first.
    assert [depth for epochs, depth, _, _ in known.asked if epochs == 1] == [22] * 3 + [16] * 3 + [10] * 3
    assert [asked for asked in known.asked if asked[0] == 3] == [
        (3, 22, "none", 0.1),
        (3, 16, "none", 0.4),
        (3, 10, "none", 0.2),
    ]


def test_a_run_that_fails_is_named() -> None:
    with pytest.raises(DemoError, match=r"The run depth 10, none, rate 0\.1 failed: ArithmeticError: no such number"):
        _search(DemoSettings(depths=(10,), schemes=("none",), rates=(0.1,)), Known({}))


def test_of_equal_losses_the_lower_rate_is_best() -> None:
    records = [_record(10, "none", 0.2, 1.0), _record(10, "none", 0.1, 1.0), _record(16, "none", 0.2, 5.0)]
    assert best_of_each(records) == records[1:]


def test_a_run_that_goes_on_is_the_run_that_never_paused(tmp_path: Path) -> None:
    settings = DemoSettings(depths=(10,), schemes=("skipinit",), batch_size=256)
    run = DemoRun(settings, 10, "skipinit", 0.1)
    first, last = (train_run(run, tmp_path / "paused", epochs) for epochs in (1, 3))
    whole = train(settings.config(10, "skipinit", 0.1), tmp_path / "whole")
    assert first.training_loss == whole.epochs[0].training_loss
    assert first.test_accuracy == whole.epochs[0].test_accuracy
    assert last.training_loss == whole.epochs[-1].training_loss
    assert last.test_accuracy == whole.test_accuracy
    assert not last.diverged


def test_a_run_that_diverges_has_no_finite_loss(tmp_path: Path) -> None:
    settings = DemoSettings(depths=(64,), schemes=("none",), rates=(0.1,))
    record = train_run(DemoRun(settings, 64, "none", 0.1), tmp_path, 1)
    assert record.diverged
    assert str(record) == "depth 64, none, rate 0.1: diverged"


def test_outcomes_are_against_batch_norm() -> None:
    finished = [
        _record(16, "skipinit", 0.1, 0.3, accuracy=0.52),
        _record(16, "fixup", 0.1, 0.3, accuracy=0.48),
        _record(16, "batch_norm", 0.1, 0.3, accuracy=0.9),
        _record(100, "none", 0.1, math.inf, accuracy=0.1),
        _record(100, "skipinit", 0.1, 0.3, accuracy=0.48),
        _record(100, "batch_norm", 0.1, 0.3, accuracy=0.8),
    ]
    table = runs_table(finished, chance=0.1)
    assert list(table["outcome"]) == ["trained", "untrained", "trained", "diverged", "trained", "trained"]
    assert math.isnan(table["rate"][3])
    without = runs_table([one for one in finished if one.run.scheme != "batch_norm"], chance=0.1)
    assert list(without["outcome"]) == ["trained", "trained", "diverged", "trained"]


def test_the_finding_is_about_the_deepest() -> None:
    finished = [
        _record(16, "none", 0.1, 0.3, accuracy=0.7),
        _record(16, "batch_norm", 0.1, 0.3, accuracy=0.9),
        _record(100, "none", 0.1, math.inf, accuracy=0.1),
        _record(100, "sqrt2", 0.1, 2.3, accuracy=0.1),
        _record(100, "skipinit", 0.1, 0.3, accuracy=0.9),
        _record(100, "batch_norm", 0.1, 0.3, accuracy=0.91),
    ]
    assert finding(runs_table(finished, chance=0.1)) == (
        "At 100 layers, each scheme at its best learning rate, skipinit (90.0 %) and batch_norm (91.0 %) trained; "
        "sqrt2 (10.0 %) did not train; the network without normalization diverged at every rate."
    )


def test_json_has_no_number_that_json_has_not(tmp_path: Path) -> None:
    record = _record(16, "none", 0.1, math.inf, accuracy=float("nan"))
    files = (tmp_path / "a.svg",), tmp_path / "index.html"
    result = DemoResult(DemoSettings(), runs_table([record], 0.1), rates_table([record]), pd.DataFrame(), *files)
    made = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert made["runs"][0]["test_accuracy"] is None
    assert made["runs"][0]["rate"] is None
    assert made["runs"][0]["seconds_per_epoch"] == 1.5
    assert made["tried"] == [{"depth": 16, "scheme": "none", "rate": 0.1, "training_loss": None}]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epochs": 0}, "Expected epochs above 0, got 0"),
        ({"workers": 0}, "Expected workers above 0, got 0"),
        ({"rates": (0.1, 0.0)}, r"Expected rates above 0, got \[0.1, 0.0\]"),
        ({"rates": (0.1, 0.1)}, "Expected rates to be one or more different values"),
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
