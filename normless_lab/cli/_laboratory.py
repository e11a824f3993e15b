"""Arguments of the commands that execute many runs: the place of their table, and their executor."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

if TYPE_CHECKING:
    from normless_lab.sweeps import Laboratory, LaboratoryListener

LOCAL = "local"
PARAMETER = re.compile(r"(\w+)=(.+)")


def add_state_arguments(parser: ArgumentParser, out: Path) -> None:
    """Add the folder of the runs in flight, by default `out`, and the table of finished ones."""
    parser.add_argument("--out", type=Path, default=out, help="folder of the runs in flight, and of the table")
    parser.add_argument(
        "--db",
        type=str,
        default=None,
        metavar="URL",
        help="database with the table of finished runs, as postgresql://USER@HOST/DATABASE; a SQLite file in the "
        "folder if left out",
    )


def add_executor_arguments(parser: ArgumentParser) -> None:
    """Add the executor of the runs, and the part of them to execute."""
    group = parser.add_argument_group("execution")
    group.add_argument(
        "--workers",
        type=int | None,
        default=None,
        help="processes that share the cores and, without --together, the cards; if left out one per core, and one "
        "per card for runs on cards; with --ray as many as it has room for",
    )
    group.add_argument(
        "--together",
        type=int | None,
        default=None,
        help="runs at once on a card, in one process; as many as memory and gain allow if left out",
    )
    group.add_argument(
        "--ray",
        type=str,
        nargs="?",
        const=LOCAL,
        default=None,
        metavar="ADDRESS",
        help="execute by Ray: on the cluster of this address, or on one of this machine if there is no address",
    )
    group.add_argument(
        "--gpus-per-run", type=float, default=0.0, help="with --ray: GPUs of each run, as 0.25 for four runs on one"
    )
    group.add_argument(
        "--slurm",
        type=str,
        nargs="*",
        default=None,
        metavar="NAME=VALUE",
        help="execute as jobs of Slurm that need this, by submitit's names: timeout_min=120 slurm_partition=gpu "
        "gpus_per_node=1; --workers is the number of jobs at once",
    )
    group.add_argument(
        "--shard",
        type=str,
        default=None,
        metavar="I/N",
        help="run one of N parts, as 2/8; for machines that share nothing but the database",
    )
    group.add_argument(
        "--wait", action="store_true", help="with --shard: wait for the other parts, and take part in added rates"
    )


def laboratory_of(namespace: Namespace, listener: LaboratoryListener | None = None) -> Laboratory:
    """Return the laboratory of the arguments; those of `add_executor_arguments` may be missing."""
    from normless_lab.sweeps import Laboratory
    from normless_lab.sweeps._clusters import RayExecutor, SlurmExecutor
    from normless_lab.sweeps._laboratory import Shard

    shard, ray, slurm = (namespace.get(name) for name in ("shard", "ray", "slurm"))
    executor: Any = None
    if slurm is not None:
        executor = partial(SlurmExecutor, namespace.out / "slurm", job_parameters(slurm), workers=namespace.workers)
    elif ray is not None:
        address = None if ray == LOCAL else ray
        executor = partial(RayExecutor, address, workers=namespace.workers, gpus_per_run=namespace.gpus_per_run)
    return Laboratory(
        namespace.out,
        url=namespace.db,
        workers=namespace.get("workers"),
        together=namespace.get("together"),
        executor=executor,
        shard=None if shard is None else Shard.from_text(shard),
        wait=bool(namespace.get("wait")),
        listener=listener,
    )


def job_parameters(words: list[str]) -> dict[str, int | str]:
    """Return the parameters of Slurm jobs in words of the form NAME=VALUE."""
    pairs = [(word, PARAMETER.fullmatch(word)) for word in words]
    for word, match in pairs:
        if match is None:
            raise ValueError(f"Expected --slurm NAME=VALUE, as timeout_min=120, got {word!r}.")
    return {match[1]: int(match[2]) if match[2].isdecimal() else match[2] for _, match in pairs if match}
