"""The campaign: it fills its time in order, goes on after a kill, and its rows suffice on another machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from normless_lab.sweeps import RunRow
from normless_lab.sweeps._laboratory import Laboratory
from normless_papers.artefact import artefact_of
from normless_papers.experiments.effort import Effort
from normless_papers.planning.campaign import Campaign, CampaignEntry
from normless_papers.results.run_file import rebuilt, write_runs

pytestmark = pytest.mark.slow
TRAINING, MEASUREMENT = "fixup/figure-4", "understanding-bn/figure-12"
EFFORT = Effort(
    data="digits(train=96, test=50)",
    model="normless:resnet_cifar(depth=8)",
    epochs=2,
    batch_size=32,
    replicates=1,
    settings={"momentum": 0.9, "weight_decay": 1e-4, "decay_policy": "all", "scalar_rate_scale": 0.1},
    reduced="ResNet-8 on 96 digits.",
)
RUNS = 6


@contextmanager
def tiny() -> Iterator[tuple[CampaignEntry, ...]]:
    """Replace the designs of a training and a measurement by some that take seconds."""
    designs = {TRAINING: {"effort": EFFORT}, MEASUREMENT: {"size": 40, "factors": (1, 2, 3, 4), "runs": 2}}
    with pytest.MonkeyPatch.context() as patch:
        for name, settings in designs.items():
            artefact = artefact_of(name)
            patch.setitem(vars(artefact), "settings", {**artefact.settings, "cpu": settings})
        yield (CampaignEntry(MEASUREMENT, "small", minutes=1), CampaignEntry(TRAINING, "cpu"))


@pytest.fixture(scope="module")
def designs() -> Iterator[tuple[CampaignEntry, ...]]:
    with tiny() as own:
        yield own


@pytest.fixture(scope="module")
def whole(designs: tuple[CampaignEntry, ...], tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """A campaign that was not interrupted."""
    campaign = Campaign(tmp_path_factory.mktemp("whole"), entries=designs)
    assert len(campaign.missing()) == RUNS
    campaign.carry_out(5.0)
    return campaign


def rows_of(out: Path) -> dict[str, RunRow]:
    with Laboratory(out / "laboratory") as laboratory:
        return laboratory.state.read(laboratory.state.hashes())


def numbers(row: RunRow) -> dict[str, object]:
    """Return the result of a run without its times."""
    result = dict(row.result or {})
    epochs = [{name: value for name, value in own.items() if name != "seconds"} for own in result.pop("epochs")]
    return {name: value for name, value in result.items() if "seconds" not in name} | {"epochs": epochs}


def test_it_carries_everything_out_and_its_rows_suffice_elsewhere(whole: Campaign, tmp_path: Path) -> None:
    measured, trained = whole.status()
    assert measured.result is not None
    assert trained.result is not None
    assert (trained.finished, trained.wanted, dict(trained.running)) == (RUNS, RUNS, {})
    file = tmp_path / "runs.parquet"
    assert write_runs(whole.out, file) == RUNS
    second = replace(whole, out=tmp_path / "second")
    second.take_over(file)
    assert second.missing() == {}


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = {folders!r}
from test_campaign import tiny
from normless_papers.planning.campaign import Campaign
if __name__ == "__main__":
    with tiny() as designs:
        Campaign(Path({out!r}), entries=designs[1:]).carry_out(5.0)
"""


def test_it_goes_on_after_a_kill_as_if_there_had_been_none(whole: Campaign, tmp_path: Path) -> None:
    script, out = tmp_path / "killed.py", tmp_path / "killed"
    script.write_text(KILLED.format(folders=list(map(str, Path(__file__).parents[:2])), out=str(out)))
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    while process.poll() is None and not any((out / "laboratory" / "work").glob("*/checkpoint.pt")):
        time.sleep(0.05)
    process.kill()
    process.wait()
    killed = Campaign(out, entries=whole.entries[1:])
    left = len(killed.missing())
    assert 0 < left <= RUNS
    # Finished rows of an unfinished artefact are kept as well.
    file = tmp_path / "runs.parquet"
    assert write_runs(out, file) == RUNS - left
    with rebuilt(file) as again:
        assert rows_of(again).keys() == rows_of(out).keys()
    killed.carry_out(5.0)
    both = rows_of(out), rows_of(whole.out)
    assert both[0].keys() == both[1].keys()
    assert all(numbers(both[0][name]) == numbers(row) for name, row in both[1].items())
