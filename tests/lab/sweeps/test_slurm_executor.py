"""Jobs as a cluster would carry them out, in processes of this machine: what ends, raises, dies and is cancelled."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from lab_helpers import TinyConfig, within

from normless_lab.cli.laboratory import job_parameters
from normless_lab.sweeps import Laboratory, SlurmExecutor

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="submitit is not installed: pip install 'normless[cluster]'"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where jobs are; they find the modules that this process finds."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return tmp_path / "jobs"


def _jobs(folder: Path, **changes: object) -> SlurmExecutor:
    return SlurmExecutor(folder, {"timeout_min": 5}, cluster="local", **changes)  # type: ignore[arg-type]


def test_a_killed_run_goes_on_in_another_job_and_one_that_raises_fails(tmp_path: Path, folder: Path) -> None:
    configs = [TinyConfig(seed=0, fate="dies", epochs=3), TinyConfig(seed=1, fate="raises")]
    with Laboratory(tmp_path / "lab", executor=lambda: _jobs(folder)) as lab:
        dies, raises = lab.carry_out(configs)
    assert dies.result is not None
    assert (dies.outcome, dies.result["resumed_after"]) == ("trained", 1)
    assert (raises.outcome, raises.error) == ("failed", "ArithmeticError: no such number as 1")


def _save_when_told(record: str) -> str:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    Path(record).write_text(str(os.getpid()))
    while not told:
        time.sleep(0.01)
    return "saved"


# submitit leaves a process that it cancels to itself.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_run_is_told_before_its_time_ends_and_leaving_cancels_the_others(tmp_path: Path, folder: Path) -> None:
    records = [tmp_path / name for name in "ab"]
    with _jobs(folder) as executor:
        told, other = (executor.submit(_save_when_told, str(record)) for record in records)
        assert within(60, lambda: all(record.exists() and record.read_text() for record in records))
        os.kill(int(records[0].read_text()), signal.SIGUSR2)
        assert told.result(60) == "saved"
    with pytest.raises(CancelledError):
        other.result(1)


@pytest.mark.parametrize(
    ("parameters", "workers", "said"), [({"nonsense": 1}, None, "nonsense"), ({}, 0, "1 or more")]
)
def test_wrong_settings_are_told(folder: Path, parameters: dict[str, int], workers: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SlurmExecutor(folder, parameters, workers=workers, cluster="local")


def test_the_words_of_the_command_become_parameters() -> None:
    words = ["timeout_min=90", "slurm_partition=gpu", "slurm_comment=a=b"]
    assert job_parameters(words) == {"timeout_min": 90, "slurm_partition": "gpu", "slurm_comment": "a=b"}
