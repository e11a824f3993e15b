"""Reproduce one artefact: call its function, check the claim, store the result."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normless.errors import NormlessError
from normless_lab.process import available_cores
from normless_lab.train import StoppedError
from normless_papers.artefact import Artefact, Context, artefact_of, published_of
from normless_papers.budgets import Budget
from normless_papers.distance import distance_of
from normless_papers.published import published
from normless_papers.results.reproduction import Reproduction, ResultError, folder_of, load, plain, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from normless_lab.sweeps import ExecutorFactory, Laboratory, LaboratoryListener

# Artefacts whose networks may be the user's.
WITH_WEIGHTS = ("gamma/figure-3", "gamma/figure-5", "gamma/table-2")


def reproduce(
    id: str,  # noqa: A002 - what the papers' index calls it
    budget: Budget = "smoke",
    *,
    out: Path,
    data: str | None = None,
    data_root: str | None = None,
    seed: int = 0,
    weights: str | None = None,
    workers: int | None = None,
    again: bool = False,
    laboratory: Laboratory | None = None,
    trains: bool = True,
) -> Reproduction:
    """Reproduce an artefact, or load the result of an earlier call with the same arguments.

    An exception of the artefact becomes the `error` of the result, which is tried again next time. A TerminatedError
    (SIGTERM) is raised, and an older result stays.

    Args:
        id: of the artefact, such as `fixup/table-1`; FILE.py:NAME or MODULE:NAME for one of another paper.
        budget, data, data_root, seed, weights: see `Context`.
        out: folder of the results, see `normless_papers.results.reproduction`, and of the runs that artefacts share.
        workers: processes that share the cores for training runs; one per core if None.
        again: carry it out even if there is a result; finished training runs are kept.
        laboratory: carries out the runs instead of the one in `out`; `workers` is then ignored.
        trains: whether missing runs are trained; without them the result is an error.

    Raises:
        UnknownArtefactError: there is no such artefact.
        ResultError: an older result cannot be read, and `again` is false; or the artefact reads no weights.
    """
    from normless_papers.experiments.effort import of_weights

    entry = published_of(id)
    id = entry.id  # noqa: A001 - as above
    older = None if again else load(out, id, budget)
    asked = {"data": data, "data_root": data_root, "seed": seed} | _weights_asked(id, weights)
    started = time.perf_counter()
    try:
        artefact = artefact_of(id)
        settings = artefact.settings if weights is None else of_weights(artefact.settings)
        asked |= {"settings": plain(settings[budget])}
        if older is not None and not older.error and older.asked == asked:
            return older
        with (
            nullcontext(laboratory) if laboratory else laboratory_in(out, workers) as lab,
            own_folder(out, id, budget) as own,
        ):
            context = Context(budget, own, data, data_root, seed, weights)
            result, axes = _carried_out(artefact, context, lab, asked, trains=trains)
            of_runs = _provenance_of_runs(result.runs, lab)
    except StoppedError:
        # The same command resumes its runs.
        raise
    except Exception as error:
        result, axes, of_runs = Reproduction(id, budget, asked, error=_sentence(error)), None, {}
    seconds, other = round(time.perf_counter() - started, 3), None if id in published() else entry
    result = replace(result, entry=other, seconds=seconds, provenance={**provenance(), **of_runs})
    save(result, axes, out)
    return result


def _weights_asked(id: str, weights: str | None) -> dict[str, Any]:  # noqa: A002 - as above
    """Return what a result notes of the person's weights: where they are, and the digests of their files."""
    from normless_papers.gamma.pretrained import digests_of

    if weights is None:
        return {}
    if id not in WITH_WEIGHTS:
        raise ResultError(f"{id} reads no weights of yours; {', '.join(WITH_WEIGHTS)} do.")
    return {"weights": weights, "files": digests_of(weights)}


def laboratory_in(
    out: Path,
    workers: int | None = None,
    listener: LaboratoryListener | None = None,
    *,
    together: int | None = None,
    executor: ExecutorFactory | None = None,
    seconds_left: Callable[[], float] | None = None,
) -> Laboratory:
    """Return the laboratory whose runs the artefacts of a folder share; a context manager."""
    from normless_lab.sweeps import Laboratory

    return Laboratory(
        out / "laboratory",
        workers=workers,
        together=together,
        executor=executor,
        listener=listener,
        seconds_left=seconds_left,
    )


def provenance() -> Mapping[str, str]:
    """Return the versions of the packages that decide numbers, the machine, and the date in UTC."""
    from normless_lab.sweeps import versions

    machine = f"{platform.machine()}, {available_cores()} cores"
    return {**versions(), "machine": machine, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M")}


def _provenance_of_runs(runs: Sequence[str], laboratory: Laboratory) -> dict[str, str]:
    """Return versions, machines and date of training runs, which may be older than the result made of them."""
    rows = sorted(laboratory.state.read(runs).values(), key=lambda row: row.finished_at)
    if not rows:
        return {}
    date = datetime.fromisoformat(rows[-1].finished_at).astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    machines = ", ".join(dict.fromkeys(row.machine for row in rows))
    return {**rows[-1].versions, "machine": machines, "date": date}


@contextmanager
def own_folder(out: Path, id: str, budget: Budget) -> Iterator[Path]:  # noqa: A002 - as above
    """Make a folder for files of the artefact, which is removed if it stays empty."""
    folder = folder_of(out, id, budget) / "files"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()


def _carried_out(
    artefact: Artefact, context: Context, laboratory: Laboratory, asked: Mapping[str, Any], *, trains: bool
) -> tuple[Reproduction, Axes | None]:
    """Return the result and its figure; a figure that cannot be drawn is an error beside the numbers."""
    import torch

    from normless_lab.plots import description
    from normless_papers.experiments.effort import of_weights

    # Random numbers without an own generator do not depend on earlier artefacts.
    torch.manual_seed(context.seed)
    runs = artefact.runs(context, laboratory, missing=trains)
    evidence = artefact(context, runs)
    axes, error = None, ""
    if evidence.draw is not None:
        try:
            axes = evidence.draw()
        except Exception as raised:
            error = f"The figure cannot be drawn: {_sentence(raised)}"
    settings = artefact.settings if context.weights is None else of_weights(artefact.settings)
    distance = distance_of(artefact, context.budget, context.data, str(evidence.setup), settings)
    if context.weights is not None:
        # Whether a person's weights are the paper's is not known.
        published_ones = distance.of_same_kind and context.weights == "torchvision"
        network = f"the weights of {context.weights}"
        distance = replace(distance, network=network, of_same_kind=published_ones)
    result = Reproduction(
        artefact.published.id,
        context.budget,
        asked,
        basis=artefact.basis,
        measured=evidence.measured,
        on=evidence.on,
        checks=artefact.checks_of(evidence),
        distance=distance,
        setup=plain(evidence.setup),
        remarks=(*artefact.remarks, *evidence.remarks),
        error=error,
        runs=tuple(sorted({name for own in runs.values() for name in own.table["hash"]})),
        figure="" if axes is None else description(axes),
    )
    return result, axes


def _sentence(error: Exception) -> str:
    """Return the message for a person, with the type of an unexpected error."""
    text = " ".join(str(error).split())
    return text if isinstance(error, NormlessError) else f"{type(error).__name__}: {text}"
