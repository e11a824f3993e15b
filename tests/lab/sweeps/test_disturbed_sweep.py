"""A sweep on PostgreSQL that is disturbed: every run is there exactly once, with the results of one that was not."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path

import pandas as pd
import psycopg
import pytest
import yaml
from disturbance_helpers import Disturbed, carry_out_disturbed, is_local_worker, is_ray_worker, plan_of, tables
from lab_helpers import Here, tiny_sweep
from postgres_helpers import ThrowawayPostgres

from normless_lab.sweeps import ExecutorFactory, LocalExecutor, RateGrid, Sweep, axis_of

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'normless[cluster]'"
)


def _rows(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [name for (name,) in connection.execute("SELECT hash FROM runs").fetchall()]


def _sixty() -> Sweep:
    return Sweep(
        name="sixty",
        base={"model": "normless:wide_resnet(depth=10, width=1)", "epochs": 3, "batch_size": 64, "device": "cpu"},
        axes={"scheme": axis_of("scheme", ["none", "skipinit", "fixup", "batch_norm"])},
        rates=RateGrid.powers(-6, -2).fixed(),
        replicates=3,
        best=2,
    )


def _file(sweep: Sweep, tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep.to_dict()))
    return path


@pytest.mark.slow
def test_a_small_sweep_survives(postgres_server: ThrowawayPostgres, postgres_url: str, tmp_path: Path) -> None:
    sweep = tiny_sweep(base={"pause": 0.1}, replicates=4, best=4, rates=RateGrid.powers(-3, -1).fixed())
    disturbed = Disturbed(_file(sweep, tmp_path), postgres_url, tmp_path / "out", ["--workers", "2"], is_local_worker)
    plan = [(2, "worker"), (5, "server"), (8, "driver")]
    carry_out_disturbed(disturbed, postgres_server, plan, seed=0, limit=300)
    assert disturbed.killed == ["worker", "server", "driver"]
    hashes = [point.config.hash for point in sweep.points()]
    assert sorted(_rows(postgres_url)) == sorted(hashes)
    runs, epochs = tables(sweep, tmp_path / "out", postgres_url, executor=Here)
    expected_runs, expected_epochs = tables(sweep, tmp_path / "undisturbed", executor=Here)
    pd.testing.assert_frame_equal(runs, expected_runs, check_exact=True)
    pd.testing.assert_frame_equal(epochs, expected_epochs, check_exact=True)


@pytest.mark.slow
def test_sixty_runs_survive_five_lost_workers_a_lost_driver_and_a_restarted_server(
    postgres_server: ThrowawayPostgres, postgres_url: str, tmp_path: Path
) -> None:
    sweep = _sixty()
    disturbed = Disturbed(_file(sweep, tmp_path), postgres_url, tmp_path / "out", ["--workers", "2"], is_local_worker)
    plan = plan_of(60, workers=5, seed=7)
    said = carry_out_disturbed(disturbed, postgres_server, plan, seed=7, limit=3000)
    assert said.count("It goes on in another process.") >= 1
    assert sorted(disturbed.killed) == ["driver", "server", *["worker"] * 5]
    hashes = [point.config.hash for point in sweep.points()]
    assert sorted(_rows(postgres_url)) == sorted(hashes)
    assert len(hashes) == 60
    runs, epochs = tables(sweep, tmp_path / "out", postgres_url, executor=Here)
    expected_runs, expected_epochs = tables(sweep, tmp_path / "undisturbed", workers=2)
    pd.testing.assert_frame_equal(runs, expected_runs, check_exact=True)
    pd.testing.assert_frame_equal(epochs, expected_epochs, check_exact=True)
    assert list((tmp_path / "out" / "work").iterdir()) == []


def _assert_survives_through_ray(
    sweep: Sweep,
    server: ThrowawayPostgres,
    url: str,
    tmp_path: Path,
    plan: list[tuple[int, str]],
    executor: ExecutorFactory,
) -> None:
    disturbed = Disturbed(_file(sweep, tmp_path), url, tmp_path / "out", ["--ray", "--workers", "2"], is_ray_worker)
    said = carry_out_disturbed(disturbed, server, plan, seed=7, limit=3000)
    assert said.count("It goes on in another process.") >= 1
    assert disturbed.killed == [whom for _, whom in plan]
    assert sorted(_rows(url)) == sorted(point.config.hash for point in sweep.points())
    runs, epochs = tables(sweep, tmp_path / "out", url, executor=Here)
    expected_runs, expected_epochs = tables(sweep, tmp_path / "undisturbed", executor=executor)
    pd.testing.assert_frame_equal(runs, expected_runs, check_exact=True)
    pd.testing.assert_frame_equal(epochs, expected_epochs, check_exact=True)
    assert list((tmp_path / "out" / "work").iterdir()) == []


@pytest.mark.slow
@needs_ray
def test_a_small_sweep_through_ray_survives_a_lost_worker(
    postgres_server: ThrowawayPostgres, postgres_url: str, tmp_path: Path
) -> None:
    sweep = tiny_sweep(base={"pause": 0.3}, replicates=2, best=2, rates=RateGrid.powers(-3, -1).fixed())
    _assert_survives_through_ray(sweep, postgres_server, postgres_url, tmp_path, [(2, "worker")], Here)


@pytest.mark.slow
@needs_ray
def test_sixty_runs_through_ray_survive_a_lost_worker(
    postgres_server: ThrowawayPostgres, postgres_url: str, tmp_path: Path
) -> None:
    _assert_survives_through_ray(
        _sixty(), postgres_server, postgres_url, tmp_path, [(20, "worker")], partial(LocalExecutor, 2)
    )
