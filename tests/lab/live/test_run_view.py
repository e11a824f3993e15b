"""The view of a run: what its files say, and damaged, half-written or hostile files, which do not end the page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shutil import copytree

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normless.probes import RideAlong, every
from normless_lab.live._view import Curve, View
from normless_lab.live._views import run_view
from normless_lab.process import MOST_CELLS
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


def lines_of(view: View, title: str) -> dict[str, Curve]:
    (chart,) = [chart for chart in view.charts if chart.title == title]
    return {line.name: line for line in chart.lines}


def test_the_view_has_what_the_files_have(trained: Path) -> None:
    view = run_view(trained)
    epochs, steps = (pd.read_parquet(trained / f"{name}.parquet") for name in ("epochs", "steps"))
    accuracy = json.loads((trained / "result.json").read_text())["test_accuracy"]
    assert view.words == f"3 of 3 epochs finished; test accuracy {accuracy:.2%}"
    assert (view.done, view.of, view.problems, view.findings) == (3, 3, [], [])
    loss = lines_of(view, "Loss")
    assert loss["training"].x == [1, 2, 3]
    assert loss["training"].y == pytest.approx(list(epochs["training_loss"]), rel=1e-5)
    assert loss["each step"].x == pytest.approx(list(steps["step"] / 5), abs=1e-4)
    assert loss["each step"].y == pytest.approx(list(steps["loss"]), rel=1e-5)
    assert lines_of(view, "Accuracy")["test"].y == pytest.approx(list(100 * epochs["test_accuracy"]), rel=1e-5)
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


@pytest.mark.parametrize("name", ["epochs.parquet", "steps.parquet", "result.json"])
@pytest.mark.parametrize("content", [b"", b"7", b"\xff\xfe\x00", None])
def test_a_damaged_file_is_told_and_the_rest_is_shown(folder: Path, name: str, content: bytes | None) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2] if content is None else content)
    view = run_view(folder)
    assert [problem.partition(" ")[0] for problem in view.problems] == [name]
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


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "unfinished.csv")
    assert "unfinished.csv is not used: expected a file" in run_view(folder).problems


def test_a_small_file_of_many_values_is_not_read(folder: Path) -> None:
    most = MOST_CELLS // 2 + 1
    column = pa.chunked_array([pa.array([0.0] * 1000)] * (most // 1000 + 1))
    same = pa.table({"step": column, "loss": column})
    pq.write_table(same, folder / "steps.parquet", compression="zstd")
    assert (folder / "steps.parquet").stat().st_size < 1e6
    (problem,) = run_view(folder).problems
    assert problem.startswith("steps.parquet is not used: expected a table of at most 30,000,000 values")
