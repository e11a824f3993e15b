"""What is interrupted: saved networks, runs, sweeps and reports, each with the facts that must not change."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from fault_operations import DONE, RAISED, TOLD, in_child, watch_operations
from lab_helpers import Here, tiny_sweep
from run_helpers import CONFIG, Interrupt, without_seconds

import normless as nl
from normless.models.spec import build_model
from normless_lab.sweeps import Laboratory
from normless_lab.sweeps.store import sqlite_url
from normless_lab.train import TrainConfig, train, trained_network
from normless_papers.pages.site import write_pages_of
from normless_papers.results.reproduce import reproduce

OTHER = replace(CONFIG, scheme="skipinit")
TOGETHER = {"one": CONFIG, "other": OTHER}


class Work:
    """Something that is carried out in a folder and gives the same facts, however often it was interrupted."""

    def __init__(self, name: str, carry_out: Callable[[Path], None], facts: Callable[[Path], Any]) -> None:
        self.name, self.carry_out, self.facts = name, carry_out, facts
        self.place = Path(tempfile.mkdtemp(prefix="normless-faults-"))
        whole = self.place / "whole"
        whole.mkdir()
        operations = self.place / "operations"

        def counted() -> None:
            watch_operations(whole, lambda count, _: os.truncate(operations, count))
            carry_out(whole)

        operations.touch()
        start = time.monotonic()
        assert in_child(counted) == DONE, f"{name} fails without a fault"
        self.seconds = time.monotonic() - start
        self.operations = operations.stat().st_size
        self.expected = self.facts_of(whole)
        self.length = len(self.expected or ())

    def facts_of(self, folder: Path) -> list[Any] | None:
        """What is compared, or None where damage is told; read in a child, since threads are not forked."""
        to = self.place / "facts"
        end = in_child(lambda: to.write_bytes(pickle.dumps(self.facts(folder))))
        if end == TOLD:
            return None
        assert end == DONE
        facts: list[Any] = pickle.loads(to.read_bytes())
        return facts

    def folder(self) -> Path:
        """A new one."""
        return Path(tempfile.mkdtemp(dir=self.place))

    def after(self, folder: Path, end: int, *, refusable: bool = False) -> str:
        """What a fault that ended a process so has done: carry out what is left, and compare.

        `refusable` is what was damaged by others, and may be told of instead.
        """
        if end == RAISED:
            return "tracebacks"
        again = in_child(lambda: self.carry_out(folder))
        if again == RAISED:
            return "tracebacks"
        if again != DONE:
            return "survived" if refusable and again == TOLD else "lost"
        facts = self.facts_of(folder)
        if facts is None:
            return "survived" if refusable else "lost"
        if len(facts) > self.length:
            return "doubled"
        verdict = "survived" if facts == self.expected else "undetected"
        shutil.rmtree(folder)
        return verdict


def _run(folder: Path) -> None:
    torch.manual_seed(int.from_bytes(os.urandom(4), "big"))
    train(CONFIG, folder)


def _facts_of_run(folder: Path, config: TrainConfig = CONFIG) -> list[Any]:
    """The result, the weights and the losses."""
    result = without_seconds(train(config, folder))
    weights = [value.double().sum().item() for value in trained_network(folder).state_dict().values()]
    return [result, weights, pd.read_parquet(folder / "steps.parquet")["loss"].tolist()]


def _sweep(folder: Path) -> None:
    """As ``normless sweep retry``: failed runs, as of a full disk, are carried out again."""
    with Laboratory(folder, executor=Here) as lab:
        rows = lab.state.read(lab.state.hashes())
        lab.state.remove([name for name, row in rows.items() if row.outcome == "failed"])
        lab.run(tiny_sweep())


def _facts_of_sweep(folder: Path) -> list[Any]:
    """Hash and accuracy of each row."""
    with Laboratory(folder, executor=Here) as lab:
        rows = lab.state.read(lab.state.hashes())
    return sorted((name, row.outcome, (row.result or {}).get("test_accuracy")) for name, row in rows.items())


ARTEFACT = "understanding-bn/figure-9"


def _report(folder: Path) -> None:
    """As ``normless reproduce`` of a formula's artefact, and ``normless report``."""
    reproduce(ARTEFACT, out=folder)
    write_pages_of(folder)


def _facts_of_report(folder: Path) -> list[Any]:
    """The numbers and the checks of the artefact, its figure, and the pages but for their dates."""
    one = reproduce(ARTEFACT, out=folder)
    pages = [path.read_text(encoding="utf-8") for path in write_pages_of(folder)]
    figures = [file.stat().st_size for file in sorted(folder.rglob("figure.*"))]
    checks = [(check.claim, check.verdict, dict(check.numbers)) for check in one.checks]
    drawn, ended = [page.count("<svg") for page in pages], [page.rstrip().endswith("</html>") for page in pages]
    return [one.measured.to_csv(), checks, figures, drawn, ended]


def _restart(folder: Path) -> None:
    """Train, start over by other settings, and go on with that after an interruption."""
    run = folder / "run"

    def scheme() -> str:
        file = run / "config.yaml"
        text = file.read_bytes() if file.exists() else b""
        return "" if not text else OTHER.scheme if b"skipinit" in text else CONFIG.scheme

    moved = any((run / name).exists() for name in ("former", "former.part"))
    if scheme() == CONFIG.scheme or not (scheme() or moved):
        train(CONFIG, run)
    train(OTHER, run, resume=scheme() == OTHER.scheme)


def _facts_of_restart(folder: Path) -> list[Any]:
    """The results of the run and of the former one."""
    run = folder / "run"
    return [without_seconds(train(OTHER, run)), without_seconds(train(CONFIG, run / "former"))]


def _drivers(folder: Path) -> None:
    """Two drivers of one sweep, each in a folder of its own, on one database."""
    url = sqlite_url(folder / "runs.sqlite")

    def drive(place: str) -> None:
        with Laboratory(folder / place, url=url, executor=Here) as lab:
            rows = lab.state.read(lab.state.hashes())
            lab.state.remove([name for name, row in rows.items() if row.outcome == "failed"])
            lab.run(tiny_sweep())

    other = os.fork()
    if other == 0:
        os._exit(in_child(lambda: drive("other")))
    try:
        drive("own")
    finally:
        ended = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
    if ended == TOLD:
        raise OSError("the other driver told of a fault")
    assert ended == DONE


def _facts_of_drivers(folder: Path) -> list[Any]:
    """Hash and accuracy of each row."""
    with Laboratory(folder / "own", url=sqlite_url(folder / "runs.sqlite"), executor=Here) as lab:
        rows = lab.state.read(lab.state.hashes())
    return sorted((name, row.outcome, (row.result or {}).get("test_accuracy")) for name, row in rows.items())


def _threads(folder: Path) -> None:
    """Two runs at once, in threads of one process."""
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(train, config, folder / name) for name, config in TOGETHER.items()]
    for end in ends:
        end.result()


def _facts_of_threads(folder: Path) -> list[Any]:
    """The results, weights and losses of both."""
    return [fact for name, config in TOGETHER.items() for fact in _facts_of_run(folder / name, config)]


SPEC = "normless:dense(depth=2, width=8, in_features=4)"


def _network(folder: Path) -> None:
    """Save a network over another, which is there until then."""
    former, new = (_converted(seed) for seed in (0, 1))
    if (folder / "saved").exists():
        # Not a sentence but a lost network.
        assert _weights(nl.load(folder / "net")) in map(_weights, (former, new))
    else:
        nl.save(former, folder / "net", SPEC)
        (folder / "saved").touch()
    nl.save(new, folder / "net", SPEC)


def _converted(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return nl.convert(build_model(SPEC), "skipinit", torch.ones(2, 4))


def _weights(network: torch.nn.Module) -> list[float]:
    return [value.double().sum().item() for value in network.state_dict().values()]


def _facts_of_network(folder: Path) -> list[Any]:
    """The weights."""
    return _weights(nl.load(folder / "net"))


def _interrupted_run(folder: Path) -> None:
    train(CONFIG, folder, listeners=[Interrupt(4)], checkpoint_every="1")


def _interrupted_sweep(folder: Path) -> None:
    """Half of its runs are finished, in a log that was not folded into the table's file."""
    with Laboratory(folder, executor=Here) as lab:
        lab.run(tiny_sweep(replicates=1, best=1))
        os._exit(DONE)


def _interrupted_report(folder: Path) -> None:
    """Without its page."""
    reproduce(ARTEFACT, out=folder)


def _interrupted_network(folder: Path) -> None:
    """Before the other is saved."""
    nl.save(_converted(0), folder / "net", SPEC)


def _interrupted_restart(folder: Path) -> None:
    """The run that is started over is there."""
    train(CONFIG, folder / "run")


def _interrupted_drivers(folder: Path) -> None:
    """One has carried out half of the runs."""
    with Laboratory(folder / "own", url=sqlite_url(folder / "runs.sqlite"), executor=Here) as lab:
        lab.run(tiny_sweep(replicates=1, best=1))
        os._exit(DONE)


def _interrupted_threads(folder: Path) -> None:
    """One run is finished, and the other is not."""
    train(CONFIG, folder / "one")
    train(OTHER, folder / "other", listeners=[Interrupt(2)], checkpoint_every="1")


INTERRUPTED = {
    "network": _interrupted_network,
    "run": _interrupted_run,
    "sweep": _interrupted_sweep,
    "report": _interrupted_report,
    "restart": _interrupted_restart,
    "drivers": _interrupted_drivers,
    "threads": _interrupted_threads,
}


WORKS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "network": (_network, _facts_of_network),
    "run": (_run, _facts_of_run),
    "sweep": (_sweep, _facts_of_sweep),
    "report": (_report, _facts_of_report),
    "restart": (_restart, _facts_of_restart),
    "drivers": (_drivers, _facts_of_drivers),
    "threads": (_threads, _facts_of_threads),
}
