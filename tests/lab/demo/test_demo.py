"""The demo from end to end, small: its JSON, its files, and what its page says."""

from __future__ import annotations

import html
import json
import math
import subprocess
import sys
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from command_outputs import check_output
from PIL import Image

from normless_lab.demo import DemoSettings
from normless_lab.demo.demo import rates_table, runs_table, train_networks
from normless_lab.demo.report import finding
from normless_lab.sweeps import Laboratory, LocalExecutor, RunRow, SweepResult, kind_of
from normless_lab.sweeps.worker import check_run
from normless_lab.train import TrainConfig, train

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
    check_output("demo", result)
    return result


@pytest.fixture
def page(done: subprocess.CompletedProcess[str], printed: dict[str, Any]) -> str:
    return html.unescape((Path(done.args) / printed["report"]).read_text("utf-8"))


@pytest.mark.slow
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


@pytest.mark.slow
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
        *("accuracy.png", "accuracy.svg", "index.html", "runs", "skip-variance.png", "skip-variance.svg"),
    ]


@pytest.mark.slow
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


class Known:
    """Ends every run with a known loss (infinite for divergence) and accuracy; raises where none is known."""

    window = 100

    def __init__(self, losses: dict[tuple[int, str, float], float], accuracies: dict[tuple[int, str], float]) -> None:
        self.losses, self.accuracies = losses, accuracies
        self.submitted: list[tuple[str, int, str, float]] = []

    def __enter__(self) -> Known:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function: Any, kind: str, values: dict[str, Any], *_: Any, group: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if function is check_run:
            future.set_result(None)
            return future
        depth = int(values["model"].partition("depth=")[2].partition(",")[0])
        network = depth, values["scheme"].partition("(")[0]
        self.submitted.append((kind, *network, values["rate"]))
        loss = self.losses.get((*network, values["rate"]))
        outcome = "failed" if loss is None else "diverged" if math.isinf(loss) else "trained"
        result = {
            "test_accuracy": str(self.accuracies.get(network, 0.5)),
            "chance_accuracy": 0.1,
            "seconds_per_epoch": 1.5,
            "epochs": [] if outcome == "diverged" else [{"training_loss": loss}],
        }
        config = kind_of(kind).settings_class().from_dict(values)
        error = "ArithmeticError: no such number" if loss is None else None
        future.set_result(
            RunRow(
                config.hash,
                kind,
                values,
                outcome,
                error,
                None if error else result,
                1.0,
                "",
                "",
                {},  # type: ignore[arg-type]
            )
        )
        return future


def _trained(folder: Path, settings: DemoSettings, known: Known) -> tuple[DemoSettings, SweepResult, SweepResult]:
    with Laboratory(folder, executor=lambda: known) as lab:  # type: ignore[arg-type,return-value]
        return (settings, *train_networks(lab, settings))


@pytest.mark.slow
def test_the_best_rate_of_an_epoch_goes_on(tmp_path: Path) -> None:
    losses = {
        (10, "none", 0.1): 2.0,
        (10, "none", 0.2): 1.0,
        (10, "none", 0.4): 3.0,
        (16, "none", 0.1): 1.5,
        (16, "none", 0.2): math.inf,
        (16, "none", 0.4): 1.5,
        (22, "none", 0.1): math.inf,
        (22, "none", 0.2): math.inf,
        (22, "none", 0.4): math.inf,
    }
    known = Known(losses, {})
    settings = DemoSettings(depths=(22, 10, 16), schemes=("none",), rates=(0.1, 0.4, 0.2))
    _, first, whole = _trained(tmp_path, settings, known)
    tried = rates_table(settings, first)
    rows = tried[["depth", "scheme", "rate", "training_loss"]].itertuples(index=False, name=None)
    assert {row[:3]: row[3] for row in rows} == losses
    # Of equal losses the lower rate is best; where every rate diverged, the lowest goes on.
    best = [(22, "none", 0.1), (16, "none", 0.1), (10, "none", 0.2)]
    assert [asked[1:] for asked in known.submitted if asked[0] == "train"] == best
    # The longest run first.
    assert [depth for kind, depth, _, _ in known.submitted if kind != "train"] == [22] * 3 + [16] * 3 + [10] * 3
    runs = runs_table(settings, whole)
    assert list(runs["depth"]) == [10, 16, 22]
    assert list(runs["outcome"].eq("diverged")) == [False, False, True]
    assert list(runs["rate"].isna()) == [False, False, True]


@pytest.mark.slow
def test_an_interrupted_demo_resumes_the_runs_of_its_first_stage(tmp_path: Path) -> None:
    settings = DemoSettings(depths=(10,), schemes=("none",), rates=(0.05,), batch_size=512)
    (first,), (whole,) = settings.first_epochs().points(), settings.whole_runs({"depth 10, none": 0.05}).points()
    # The last digits depend on the number of threads.
    executor = partial(LocalExecutor, 1, threads=torch.get_num_threads())
    with Laboratory(tmp_path, executor=executor) as lab:
        lab.run(settings.first_epochs())
        kept = lab.weights_folder(first.config)
        assert (kept / "checkpoint.pt").exists()
        lab.start_from(whole.config, kept)
        assert not kept.exists()
    with Laboratory(tmp_path, executor=executor) as lab:
        _, result = train_networks(lab, settings)
        assert list(lab.work.iterdir()) == []
    alone = train(whole.config, tmp_path / "alone")  # type: ignore[arg-type]
    assert isinstance(whole.config, TrainConfig)
    assert result.runs["test_accuracy"].tolist() == [alone.test_accuracy]
    assert result.epochs["training_loss"].tolist() == [row.training_loss for row in alone.epochs]


def _finished(folder: Path, accuracies: dict[tuple[int, str], float], diverged: tuple[int, str]) -> pd.DataFrame:
    """The table of runs with these test accuracies."""
    depths = tuple(sorted({depth for depth, _ in accuracies}))
    schemes = tuple(dict.fromkeys(scheme for _, scheme in accuracies))
    settings = DemoSettings(depths=depths, schemes=schemes, rates=(0.1,))
    losses = {(*network, 0.1): math.inf if network == diverged else 0.3 for network in accuracies}
    return runs_table(settings, _trained(folder, settings, Known(losses, accuracies))[2])


def test_the_finding_is_about_the_deepest(tmp_path: Path) -> None:
    accuracies = {
        (16, "none"): 0.7,
        (16, "sqrt2"): 0.7,
        (16, "skipinit"): 0.7,
        (16, "batch_norm"): 0.9,
        (100, "none"): 0.1,
        (100, "sqrt2"): 0.1,
        (100, "skipinit"): 0.9,
        (100, "batch_norm"): 0.91,
    }
    assert finding(_finished(tmp_path, accuracies, (100, "none"))) == (
        "At 100 layers, each scheme at its best learning rate, skipinit (90.0 %) and batch_norm (91.0 %) trained; "
        "sqrt2 (10.0 %) did not train; the network without normalization diverged at every rate."
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epochs": 0}, "epochs should be greater than 0, got 0"),
        ({"workers": 0}, "workers should be greater than 0, got 0"),
        ({"rates": (0.1, 0.0)}, r"rates\.1 should be greater than 0, got 0\.0"),
        ({"rates": (0.1, 0.1)}, "Expected rates to be different values"),
        ({"depths": ()}, "depths should have at least 1 item"),
        ({"depths": (17,)}, "the nearest is 16"),
        ({"schemes": ("skipinit", "skipinit")}, "Expected schemes to be different values"),
        ({"schemes": ("nosuch",)}, "nosuch"),
        ({"out": Path(__file__)}, "is a file; name another with --out"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DemoSettings(**settings)
