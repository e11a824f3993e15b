"""Networks, runs and sweeps are killed at every file operation, find the disk full, or their files damaged.

Whatever happened, the same call goes on from what is left and ends as one that nothing disturbed: nothing is lost,
doubled or silently changed, and nothing ends in a traceback. `make faults` tries all faults; `NORMLESS_FAULTS=200` is
every 200th of them. The tests need a process in which nothing was trained, since forks have no threads.
"""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from kills import DONE, RAISED, TOLD, Operation, in_child, kill_at, watch_operations
from lab_helpers import Here, tiny_sweep
from run_helpers import CONFIG, Interrupt, without_seconds
from safetensors.torch import load_file

import normless as nl
from normless.errors import NormlessError
from normless.models._spec import build_model
from normless.saving import Digests
from normless_lab.sweeps import Laboratory
from normless_lab.train import train, trained_network

EVERY = int(os.environ.get("NORMLESS_FAULTS", "1"))
TRIALS = max(1, 200 // EVERY)
OTHER = replace(CONFIG, scheme="skipinit")
SPEC = "normless:dense(depth=2, width=8, in_features=4)"


@dataclass(frozen=True)
class Work:
    """What is run in a folder, the facts that it leaves, and how it is left when it is interrupted."""

    carry_out: Callable[[Path], None]
    facts: Callable[[Path], list[Any]]
    interrupted: Callable[[Path], None]


def run(folder: Path) -> None:
    torch.manual_seed(int.from_bytes(os.urandom(4), "big"))
    train(CONFIG, folder)


def facts_of_run(folder: Path) -> list[Any]:
    result = without_seconds(train(CONFIG, folder))
    weights = [value.double().sum().item() for value in trained_network(folder).state_dict().values()]
    return [result, weights, pd.read_parquet(folder / "steps.parquet")["loss"].tolist()]


def sweep(folder: Path) -> None:
    """As ``normless sweep retry``: failed runs, as of a full disk, start again."""
    with Laboratory(folder, executor=Here) as lab:
        rows = lab.state.read(lab.state.hashes())
        lab.state.remove([name for name, row in rows.items() if row.outcome == "failed"])
        lab.run(tiny_sweep())


def facts_of_sweep(folder: Path) -> list[Any]:
    with Laboratory(folder, executor=Here) as lab:
        rows = lab.state.read(lab.state.hashes())
    return sorted((name, row.outcome, (row.result or {}).get("test_accuracy")) for name, row in rows.items())


def half_a_sweep(folder: Path) -> None:
    """Half of its runs are finished, in a log that was not folded into the table's file."""
    with Laboratory(folder, executor=Here) as lab:
        lab.run(tiny_sweep(replicates=1, best=1))
        os._exit(DONE)


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[list[int]]:
    """Run something else in a process of its own; its end is known afterwards."""
    ends: list[int] = []
    other = os.fork()
    if other == 0:
        os._exit(in_child(work))
    try:
        yield ends
    finally:
        ends.append(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))


def restart(folder: Path) -> None:
    """Train, start over by other settings, and go on with that after an interruption."""
    directory, file = folder / "run", folder / "run" / "config.yaml"

    def scheme() -> str:
        text = file.read_bytes() if file.exists() else b""
        return "" if not text else OTHER.scheme if b"skipinit" in text else CONFIG.scheme

    moved = any((directory / name).exists() for name in ("former", "former.part"))
    if scheme() == CONFIG.scheme or not (scheme() or moved):
        train(CONFIG, directory)
    train(OTHER, directory, resume=scheme() == OTHER.scheme)


def facts_of_restart(folder: Path) -> list[Any]:
    return [without_seconds(train(OTHER, folder / "run")), without_seconds(train(CONFIG, folder / "run" / "former"))]


def converted(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return nl.convert(build_model(SPEC), "skipinit", torch.ones(2, 4))


def weights_of(network: torch.nn.Module) -> list[float]:
    return [value.double().sum().item() for value in network.state_dict().values()]


def network(folder: Path) -> None:
    """Save a network over another, which is there until then."""
    former, new = converted(0), converted(1)
    if (folder / "saved").exists():
        # Not a sentence but a lost network.
        assert weights_of(nl.load(folder / "net")) in map(weights_of, (former, new))
    else:
        nl.save(former, folder / "net", SPEC)
        (folder / "saved").touch()
    nl.save(new, folder / "net", SPEC)


class Residual(torch.nn.Module):
    """Two residual blocks with layer norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(8), torch.nn.LayerNorm(8)])
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x)).relu()
        out: torch.Tensor = self.head(x)
        return out


def removal(folder: Path) -> None:
    """Fine-tune without norms in a loop of one's own, with a file after each step, and go on from it."""
    torch.manual_seed(0)
    net = Residual()
    begun = nl.remove_norms(net, torch.randn(4, 8), start=3, interval=2)
    optimizer, file, done = torch.optim.AdamW(net.parameters(), lr=0.01), folder / "state.pt", 0
    if not Digests(folder).is_intact(file):
        raise NormlessError(f"{file} is damaged.")
    if file.exists():
        state = torch.load(file, weights_only=True)
        done = state["step"]
        for own, name in ((net, "net"), (optimizer, "optimizer"), (begun, "removal")):
            own.load_state_dict(state[name])
    for step in range(done + 1, 13):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        begun.loss(net(x).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        begun.step()
        states = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "removal": begun.state_dict()}
        with Digests(folder).replaced(file) as part:
            torch.save(states | {"step": step}, part)
    nl.save(nl.fold(begun.finish(allow_partial=True), torch.randn(4, 8))[0], folder / "net")


def facts_of_removal(folder: Path) -> list[Any]:
    return [value.tolist() for value in load_file(folder / "net" / "model.safetensors").values()]


WORKS = {
    "removal": Work(removal, facts_of_removal, removal),
    "network": Work(
        network,
        lambda folder: weights_of(nl.load(folder / "net")),
        lambda folder: nl.save(converted(0), folder / "net", SPEC),
    ),
    "run": Work(
        run, facts_of_run, lambda folder: train(CONFIG, folder, listeners=[Interrupt(4)], checkpoint_every="1")
    ),
    "sweep": Work(sweep, facts_of_sweep, half_a_sweep),
    "restart": Work(restart, facts_of_restart, lambda folder: train(CONFIG, folder / "run")),
}


class Trial:
    """A work that was run once without a fault, which counts its file operations and its seconds."""

    def __init__(self, work: Work, place: Path) -> None:
        self.work, self.place = work, place
        operations, whole = place / "operations", self.folder()

        def counted() -> None:
            watch_operations(whole, lambda count, _: os.truncate(operations, count))
            work.carry_out(whole)

        operations.touch()
        start = time.monotonic()
        assert in_child(counted) == DONE
        self.seconds, self.operations = time.monotonic() - start, operations.stat().st_size
        self.expected = self.facts_of(whole)

    def folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.place))

    def facts_of(self, folder: Path) -> Any:
        """What is compared, or None where damage is told; read in a child, since threads are not forked."""
        to = self.place / "facts"
        end = in_child(lambda: to.write_bytes(pickle.dumps(self.work.facts(folder))))
        assert end in (DONE, TOLD)
        return pickle.loads(to.read_bytes()) if end == DONE else None

    def assert_survived(self, folder: Path, *ends: int, fault: object = "", damaged: bool = False) -> None:
        """Run what a fault left, and compare. Of what was damaged by others a sentence may tell instead."""
        assert RAISED not in ends, f"{fault}: a traceback"
        again = in_child(lambda: self.work.carry_out(folder))
        facts = self.facts_of(folder) if again == DONE else None
        if not (damaged and again in (DONE, TOLD) and facts is None):
            assert (again, facts) == (DONE, self.expected), fault
        shutil.rmtree(folder)


@pytest.fixture(scope="module", params=WORKS)
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    torch.set_num_threads(1)
    return Trial(WORKS[request.param], tmp_path_factory.mktemp(request.param))


def refuse(first: int, code: int, last: int | None = None) -> Operation:
    """Refuse the operations from this number on that need space, or, read-only, all, with an error's code."""

    def do(count: int, event: str) -> None:
        writes = event in ("open", "os.mkdir", "os.rename", "os.fsync")
        if first <= count <= (last or count) and (code == errno.EROFS or writes):
            raise OSError(code, os.strerror(code))

    return do


# The fault at an operation, by its number, and in how many attempts it happens.
FAULTS: dict[str, tuple[Callable[[int], Operation], int]] = {
    "killed": (kill_at, 1),
    "disk full from there on": (lambda number: refuse(number, errno.ENOSPC), 1),
    "quota exceeded in four attempts": (lambda number: refuse(number, errno.EDQUOT, number), 4),
    "read-only from there on": (lambda number: refuse(number, errno.EROFS), 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_each_file_operation(trial: Trial, fault: str) -> None:
    make, times = FAULTS[fault]

    def faulty(folder: Path, number: int) -> None:
        watch_operations(folder, make(number))
        trial.work.carry_out(folder)

    for number in range(1 + EVERY // 2 % trial.operations, trial.operations + 1, EVERY):
        folder = trial.folder()
        ends = [in_child(partial(faulty, folder, number)) for _ in range(times)]
        trial.assert_survived(folder, *ends, fault=f"{fault} at {number} of {trial.operations}")


def test_kills_at_random_instants(trial: Trial) -> None:
    chance = random.Random(0)
    for _ in range(TRIALS):
        folder = trial.folder()
        work = partial(trial.work.carry_out, folder)
        ends = [in_child(work, kill_after=chance.random() * trial.seconds) for _ in range(3)]
        trial.assert_survived(folder, *ends)


def test_two_processes_in_one_folder(trial: Trial) -> None:
    for _ in range(max(1, TRIALS // 20)):
        folder = trial.folder()
        with beside(partial(trial.work.carry_out, folder)) as ends:
            ends.append(in_child(partial(trial.work.carry_out, folder)))
        trial.assert_survived(folder, *ends)


@pytest.mark.parametrize("finished", [False, True])
def test_flipped_bits_and_truncated_files(trial: Trial, finished: bool) -> None:
    chance, ready = random.Random(1), trial.folder()
    assert in_child(partial(trial.work.carry_out if finished else trial.work.interrupted, ready)) in (DONE, RAISED)
    found = sorted(path.relative_to(ready) for path in ready.rglob("*") if "tensorboard" not in path.parts)
    files = [path for path in found if (ready / path).is_file() and (ready / path).stat().st_size]
    kinds = ["truncated"] + ["bit"] * max(2, 100 // len(files))
    for file, kind in [(file, kind) for file in files for kind in kinds][:: max(1, EVERY // 4)]:
        folder = trial.folder()
        shutil.copytree(ready, folder, dirs_exist_ok=True)
        data = bytearray((folder / file).read_bytes())
        place = chance.randrange(len(data))
        if kind == "bit":
            data[place] ^= 1 << chance.randrange(8)
        (folder / file).write_bytes(data if kind == "bit" else data[:place])
        trial.assert_survived(folder, fault=f"{file}, {kind} at {place}", damaged=True)
