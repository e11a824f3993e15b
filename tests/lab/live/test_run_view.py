"""The view of a run: what its files say, and damaged, half-written or hostile files, which do not end the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock

from normless.probes import RideAlong, every
from normless_lab.live import View, run_view
from normless_lab.live.view import POINTS, Line, line
from normless_lab.train import TrainConfig, train

CONFIG = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)", scheme="skipinit", batch_size=256, epochs=3, device="cpu"
)
HOSTILE = "</script><script>document.title='stolen'</script><b id=evil>"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    train(CONFIG, folder, ride_along=RideAlong(("signal", "gradients"), every(4)))
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(copytree(trained, tmp_path / "small"))


def lines_of(view: View, title: str) -> dict[str, Line]:
    (chart,) = [one for one in view.charts if one.title == title]
    return {one.name: one for one in chart.lines}


def test_the_view_has_what_the_files_have(trained: Path) -> None:
    view = run_view(trained)
    epochs, steps = (pd.read_parquet(trained / f"{name}.parquet") for name in ("epochs", "steps"))
    accuracy = json.loads((trained / "result.json").read_text())["test_accuracy"]
    assert view.title == "small"
    assert view.state in ("trained", "chance")
    assert view.words == f"3 of 3 epochs finished; test accuracy {accuracy:.2%}"
    assert (view.done, view.of, view.problems, view.findings) == (3, 3, [], [])
    loss = lines_of(view, "Loss")
    assert loss["training"].x == [1, 2, 3]
    assert loss["training"].y == pytest.approx(list(epochs["training_loss"]), rel=1e-5)
    assert loss["each step"].x == pytest.approx(list(steps["step"] / 5), abs=1e-4)
    assert loss["each step"].y == pytest.approx(list(steps["loss"]), rel=1e-5)
    assert lines_of(view, "Accuracy")["test"].y == pytest.approx(list(100 * epochs["test_accuracy"]), rel=1e-5)
    assert lines_of(view, "Learning rate")["at the end of the epoch"].y == pytest.approx(
        list(epochs["rate"]), rel=1e-5
    )
    assert dict(view.settings)["scheme"] == "skipinit"
    json.dumps(view.to_dict(), allow_nan=False)


def test_signal_by_block_and_gradients_by_layer(trained: Path) -> None:
    view = run_view(trained)
    signal = lines_of(view, "Signal after each block, E[x²]")
    # Steps 1, 5 | 9 | 13 of five each: the first of all, then the last of each epoch.
    assert list(signal) == ["step 1", "step 9", "step 13"]
    table = pd.read_parquet(trained / "probes/signal/epoch-0002.parquet")
    assert signal["step 9"].x == [1, 2, 3]
    assert signal["step 9"].y == pytest.approx(list(table["sum_second_moment"]), rel=1e-5)
    gradients = pd.read_parquet(trained / "probes/gradients/epoch-0003.parquet")
    squares = gradients.assign(square=gradients["norm"] ** 2).groupby("layer", sort=False)["square"].sum()
    layer = lines_of(view, "Gradient of each layer, ‖∂L/∂w‖")["step 13"]
    assert layer.y == pytest.approx(list(squares**0.5), rel=1e-5)


def test_an_epoch_under_way_and_findings(folder: Path) -> None:
    (folder / "result.json").unlink()
    (folder / "unfinished.csv").write_text("2.8,7\n3,7\n3.2,0.5\n3.4,0.25\n3.6,0.1")
    finding = {
        "title": "All is lost.",
        "evidence": {"step": 12},
        "cure": {"words": "stop"},
        "step": 12,
        "epochs": 2.4,
    }
    (folder / "findings.json").write_text(json.dumps([finding, finding | {"cure": None, "evidence": None}, 1]))
    view = run_view(folder)
    assert view.state == "interrupted"
    assert view.done == 3.4
    steps = lines_of(view, "Loss")["each step"]
    # Of the third epoch too, which is among the curves.
    assert (steps.x[-3:], steps.y[-2:]) == ([3.0, 3.2, 3.4], [0.5, 0.25])
    assert len(steps.x) == 3 * 5 + 2
    assert view.findings == [("All is lost.", ""), ("Step 12: All is lost.", "stop")]
    assert next(one for one in view.charts if one.title == "Loss").marks == [2.4, 2.4]
    with FileLock(folder / "run.lock"):
        assert run_view(folder).state == "running"


def test_doubled_epochs_are_those_of_the_last_training(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "doubled"
    train(replace(CONFIG, epochs=2, epochs_until_plateau=True, max_doublings=1, rate=0.01), run)
    view = run_view(run)
    assert view.done == view.of == len(pd.read_parquet(run / "epochs-4" / "epochs.parquet")) == 4


def test_a_run_that_diverged_in_its_first_epoch_is_drawn_over_steps(tmp_path: Path) -> None:
    train(replace(CONFIG, rate=1e6, scheme="none"), tmp_path)
    view = run_view(tmp_path)
    assert view.state == "diverged"
    (chart,) = view.charts
    assert chart.x_label == "step"
    assert chart.lines[0].x == list(range(1, len(chart.lines[0].x) + 1))


@pytest.mark.parametrize("name", ["epochs.parquet", "steps.parquet", "result.json", "config.yaml"])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"[1, 2", b"7", b"\xff\xfe\x00", None])
def test_a_damaged_file_is_told_and_the_rest_is_shown(folder: Path, name: str, content: bytes | None) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2] if content is None else content)
    view = run_view(folder)
    assert [one.partition(" ")[0] for one in view.problems] in ([name], [])
    assert view.problems or name == "config.yaml"
    assert len(view.charts) >= 3
    json.dumps(view.to_dict(), allow_nan=False)


def test_columns_and_values_of_somebody_else(folder: Path) -> None:
    pd.DataFrame({"epoch": [1, 2], "training_loss": [HOSTILE, "x"]}).to_parquet(folder / "epochs.parquet")
    pd.DataFrame({"step": [None, 1], "loss": [1.0, 2.0]}).to_parquet(folder / "steps.parquet")
    pd.DataFrame({"block": [1]}).to_parquet(folder / "probes/signal/epoch-0001.parquet")
    (folder / "unfinished.csv").write_text("1;2\n")
    (folder / "findings.json").write_text(json.dumps([{"title": [HOSTILE], "cure": 7, "epochs": "x"}]))
    (folder / "result.json").write_text(json.dumps({"outcome": HOSTILE, "diverged_step": HOSTILE}))
    view = run_view(folder)
    assert len(view.problems) == 4
    json.dumps(view.to_dict(), allow_nan=False)


def test_long_curves_are_averaged_and_gaps_stay() -> None:
    x, y = np.arange(10_000.0), np.arange(10_000.0) * 2
    drawn = line("long", x, y, "quiet")
    assert len(drawn.x) == len(drawn.y) == POINTS
    assert drawn.y == pytest.approx([2 * one for one in drawn.x], rel=1e-5)
    assert line("gap", [1, 2, 3], [1.0, float("nan"), float("inf")], "quiet").y == [1.0, None, None]
    with pytest.raises(ValueError, match="finite position for each of 2 numbers of odd"):
        line("odd", [1], [1, 2], "quiet")
