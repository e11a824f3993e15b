"""The files that a run writes after each epoch: curves, and the state for the next epochs, sharded or not."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from normless.residual import ResidualMap
from normless.saving import Digests, replaced
from normless_lab.train._directory import RunDirectory, RunDirectoryError
from normless_lab.train._fabric import Fabric, ModelParallelStrategy
from normless_lab.train._optimizers import restored_exactly


class Sharded(ModelParallelStrategy):
    """Shard a network by `fully_shard`, with a parameter group for each block and another for the rest.

    Checkpoints have the format of one process: a file with whole tensors, from which any number of processes, sharded
    or not, can resume. `structure` is the map of the network that is set up next.
    """

    structure: ResidualMap

    def __init__(self, processes: int) -> None:
        super().__init__(self._shard, data_parallel_size=processes, tensor_parallel_size=1)

    def _shard(self, network: nn.Module, mesh: Any) -> Any:
        paths = {block.module for block in self.structure.blocks} - {""}
        # Inner modules first: an outer group takes the remaining parameters.
        for path in sorted(paths, key=lambda path: -path.count(".")):
            fully_shard(network.get_submodule(path), mesh=mesh["data_parallel"], reshard_after_forward=True)
        return fully_shard(network, mesh=mesh["data_parallel"], reshard_after_forward=False)

    def save_checkpoint(self, path: Any, state: dict[str, Any], *_: Any, **__: Any) -> None:
        """Write the state with whole tensors in the first process."""
        stateful = (nn.Module, torch.optim.Optimizer)
        whole = {
            name: _whole(item.state_dict()) if isinstance(item, stateful) else item for name, item in state.items()
        }
        if self.is_global_zero:
            torch.save(whole, path)

    def load_checkpoint(self, path: Any, state: Any = None, *_: Any, **__: Any) -> dict[str, Any]:
        """Restore the objects in `state` from a file with whole tensors; return the other entries of the file."""
        stored: dict[str, Any] = torch.load(Path(path), map_location="cpu", weights_only=True)
        for name, item in state.items():
            entry = stored.pop(name)
            if isinstance(item, nn.Module):
                own = item.state_dict()
                item.load_state_dict({key: _part(value, own.get(key)) for key, value in entry.items()})
            elif isinstance(item, torch.optim.Optimizer):
                parameters = [parameter for group in item.param_groups for parameter in group["params"]]
                parts = {
                    index: {part: _part(value, parameters[index]) for part, value in values.items()}
                    for index, values in entry["state"].items()
                }
                item.load_state_dict(entry | {"state": parts})
            else:
                state[name] = entry
        return stored


def _whole(state: Any) -> Any:
    """Return a nested state with whole tensors; every process takes part."""
    return tree_map(lambda value: value.full_tensor().cpu() if isinstance(value, DTensor) else value, state)


def _part(value: Any, like: Any) -> Any:
    """Return this process's part of a tensor if `like` is sharded and of its shape; else the unchanged value."""
    if not (isinstance(like, DTensor) and isinstance(value, Tensor) and value.shape == like.shape):
        return value
    # Every process has read the whole tensor, so it is not sent.
    value = value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


@contextmanager
def whole_weights(network: nn.Module) -> Iterator[None]:
    """Within the context, every process has all weights of the network, and passes do not need other processes."""
    parts = [module for module in network.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(part is not network, recurse=False)
            part.reshard()


def save_checkpoint(
    fabric: Fabric,
    directory: RunDirectory,
    network: nn.Module,
    optimizer: Optimizer,
    epoch: int,
    within: Mapping[str, Any] | None = None,
) -> None:
    """Write weights, buffers, optimizer state and the number of finished epochs; called by every process.

    The previous checkpoint is kept. `within` is the state of an unfinished epoch that `train_epoch` needs, including
    the states of generators; each epoch seeds its generators from (seed, epoch).
    """
    state: dict[str, Any] = {"network": network, "optimizer": optimizer, "epoch": epoch, "within": within}
    path = directory.checkpoint
    with (
        directory.digests.replaced(path, keep=directory.previous_checkpoint)
        if fabric.is_global_zero
        else nullcontext(path) as part
    ):
        fabric.save(part, state)


def load_checkpoint(
    fabric: Fabric, directory: RunDirectory, network: nn.Module, optimizer: Optimizer
) -> tuple[int, Mapping[str, Any] | None]:
    """Restore a checkpoint and return the number of finished epochs and the `within` of `save_checkpoint`.

    They are 0 and None if the file does not exist.
    """
    path = intact_checkpoint(directory)
    if path is None:
        return 0, None
    state: dict[str, Any] = {"network": network, "optimizer": optimizer, "epoch": 0}
    with readable(path), restored_exactly(optimizer):
        rest = fabric.load(path, state, weights_only=True)
    return int(state["epoch"]), rest.get("within")


def load_weights(path: Path) -> dict[str, Tensor]:
    """Return weights and buffers of a checkpoint, on the CPU."""
    with readable(path):
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)["network"]
    return weights


def intact_checkpoint(directory: RunDirectory) -> Path | None:
    """Return the last intact checkpoint, with a warning if a later one is damaged; None if there are none.

    Raises:
        RunDirectoryError: every checkpoint is damaged.
    """
    there = [path for path in (directory.checkpoint, directory.previous_checkpoint) if path.exists()]
    for path in there:
        if directory.digests.is_intact(path):
            if path != there[0]:
                # Otherwise it would be kept instead of the intact checkpoint.
                there[0].unlink(missing_ok=True)
                warnings.warn(
                    f"{there[0]} was damaged, not as the run wrote it, and is removed; the run goes on from "
                    f"{path.name}, a checkpoint earlier.",
                    stacklevel=2,
                )
            return path
    directory.check_intact(*there)
    return None


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn torch's errors about a checkpoint into one sentence."""
    try:
        yield
    except (RuntimeError, EOFError, KeyError, TypeError, AttributeError, pickle.UnpicklingError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RunDirectoryError(
            f"{path} is not a checkpoint of this run ({reason}); restore it from a copy, or start "
            "over with resume=False (--restart)."
        ) from error


class Curves:
    """The `rows` of finished epochs and the `losses` (nats) of all steps, in Parquet.

    After an interruption with `finished` epochs, the losses of later epochs are dropped. A process that does not
    write only collects.
    """

    def __init__(self, directory: RunDirectory, *, finished: int, steps_per_epoch: int, writes: bool) -> None:
        self._directory, self._writes = directory, writes
        self._steps_per_epoch = steps_per_epoch
        self._row_type = directory.result_type.ROW
        self.rows: list[Any] = []
        self.losses: list[float] = []
        if finished:
            directory.check_intact(directory.epochs, directory.steps)
            self.rows = _read_rows(directory.epochs, self._row_type)[:finished]
            self.losses = pd.read_parquet(directory.steps)["loss"].tolist()[: finished * steps_per_epoch]

    def add_epoch(self, losses: Sequence[float], row: Any | None) -> None:
        """Add the losses and the row of an epoch (None if it diverged), and write both tables."""
        self.losses.extend(losses)
        if row is not None:
            self.rows.append(row)
        if self._writes:
            self._write_tables()

    def _write_tables(self) -> None:
        columns = {field.name: "int64" if field.name == "epoch" else "float64" for field in fields(self._row_type)}
        epochs = pd.DataFrame([asdict(row) for row in self.rows], columns=list(columns)).astype(columns)
        step = pd.RangeIndex(1, len(self.losses) + 1).to_numpy()
        epoch = (step - 1) // self._steps_per_epoch + 1
        steps = pd.DataFrame({"step": step, "epoch": epoch, "loss": pd.Series(self.losses, dtype="float64")})
        write_table(epochs, self._directory.epochs, self._directory.digests)
        write_table(steps, self._directory.steps, self._directory.digests)


def _read_rows(path: Path, row_type: type[Any]) -> list[Any]:
    """Read the rows of a table; NaN becomes None in fields that may be None."""
    optional = [field.name for field in fields(row_type) if str(field.type).endswith("None")]
    rows: list[dict[Any, Any]] = pd.read_parquet(path).to_dict("records")
    return [row_type(**row | {name: None for name in optional if pd.isna(row[name])}) for row in rows]


def write_table(table: pd.DataFrame, path: Path, digests: Digests | None = None) -> None:
    """Write a Parquet table atomically, and record its digest in `digests` if given."""
    with (replaced if digests is None else digests.replaced)(path) as part:
        table.to_parquet(part, index=False)
