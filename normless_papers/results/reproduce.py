"""Reproduce one artefact: call its function, check the claim, store the result."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
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
from normless_papers.published import published
from normless_papers.results.reproduction import Reproduction, plain
from normless_papers.results.storage import folder_of, load, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from normless_lab.sweeps import Laboratory, LaboratoryListener


def reproduce(
    id: str,  # noqa: A002 - what the papers' index calls it
    budget: Budget = "smoke",
    *,
    out: Path,
    data: str | None = None,
    data_root: str | None = None,
    seed: int = 0,
    workers: int | None = None,
    again: bool = False,
    laboratory: Laboratory | None = None,
) -> Reproduction:
    """Reproduce an artefact, or load the result of an earlier call with the same arguments.

    What the artefact raises is the `error` of the result, which is tried again next time; a TerminatedError (SIGTERM)
    is raised, and an older result stays. UnknownArtefactError where there is no such artefact, ResultError if an
    older result cannot be read, and `again` is false.

    Args:
        id: of the artefact, as `fixup/table-1`, or FILE.py:NAME or MODULE:NAME of one of another paper.
        budget, data, data_root, seed: see `Context`.
        out: folder of the results, see `normless_papers.results.storage`, and of the runs that artefacts share.
        workers: processes that share the cores for training runs; one per core if None.
        again: whether it is carried out even if the same has been; finished training runs are kept.
        laboratory: carries out the runs in place of one in `out`; `workers` is then ignored.
    """
    entry = published_of(id)
    id = entry.id  # noqa: A001 - as above
    older = None if again else load(out, id, budget)
    asked = {"data": data, "data_root": data_root, "seed": seed}
    started = time.perf_counter()
    try:
        artefact = artefact_of(id)
        asked["settings"] = plain(artefact.settings[budget])
        if older is not None and not older.error and older.asked == asked:
            return older
        with (
            nullcontext(laboratory) if laboratory else laboratory_in(out, workers) as lab,
            _own_folder(out, id, budget) as own,
        ):
            result, axes = _carried_out(artefact, Context(budget, lab, own, data, data_root, seed), asked)
    except StoppedError:
        # No result of this artefact: the same command goes on with its runs.
        raise
    except Exception as error:
        result, axes = Reproduction(id, budget, asked, error=_sentence(error)), None
    seconds, other = round(time.perf_counter() - started, 3), None if id in published() else entry
    result = replace(result, entry=other, seconds=seconds, provenance=provenance())
    save(result, axes, out)
    return result


def laboratory_in(
    out: Path,
    workers: int | None = None,
    listener: LaboratoryListener | None = None,
    *,
    together: int | None = None,
) -> Laboratory:
    """The laboratory whose runs the artefacts of a folder share; a context manager."""
    from normless_lab.sweeps import Laboratory

    return Laboratory(out / "laboratory", workers=workers, together=together, listener=listener)


def provenance() -> Mapping[str, str]:
    """Versions of what decides numbers, the machine, and the date in UTC."""
    from normless_lab.sweeps import versions

    machine = f"{platform.machine()}, {available_cores()} cores"
    return {**versions(), "machine": machine, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M")}


@contextmanager
def _own_folder(out: Path, id: str, budget: Budget) -> Iterator[Path]:  # noqa: A002 - as above
    """A folder for files of the artefact's own; it does not stay if there are none."""
    folder = folder_of(out, id, budget) / "files"
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    with suppress(OSError):
        folder.rmdir()


def _carried_out(artefact: Artefact, context: Context, asked: Mapping[str, Any]) -> tuple[Reproduction, Axes | None]:
    """The result and its figure; if the figure cannot be drawn, an error besides the numbers."""
    import torch

    from normless_lab.plots import description

    # What an artefact draws without a generator of its own does not depend on what ran before it.
    torch.manual_seed(context.seed)
    context.lab.asked.clear()
    evidence = artefact.function(context, **artefact.settings[context.budget])
    axes, error = None, ""
    if evidence.draw is not None:
        try:
            axes = evidence.draw()
        except Exception as raised:
            error = f"The figure cannot be drawn: {_sentence(raised)}"
    result = Reproduction(
        artefact.published.id,
        context.budget,
        asked,
        basis=artefact.basis,
        measured=evidence.measured,
        on=evidence.on,
        checks=artefact.checks_of(evidence),
        setup=plain(evidence.setup),
        remarks=(*artefact.remarks, *evidence.remarks),
        error=error,
        runs=tuple(sorted(context.lab.asked)),
        figure="" if axes is None else description(axes),
    )
    return result, axes


def _sentence(error: Exception) -> str:
    """What a person reads; of errors that were not raised on purpose, their kind too."""
    text = " ".join(str(error).split())
    return text if isinstance(error, NormlessError) else f"{type(error).__name__}: {text}"
