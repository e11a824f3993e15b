"""The curves of a run: a row per epoch and the loss of every step, in Parquet and for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pandas as pd

from normless.train.atomic_write import replaced
from normless.train.directory import RunDirectory
from normless.train.result import Row

if TYPE_CHECKING:
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

SomeRow = TypeVar("SomeRow", bound=Row)


class Curves(Generic[SomeRow]):
    """Collects rows and writes them; after an interruption, rows of unfinished epochs are dropped.

    Args:
        directory: of the run.
        kind: of its rows.
        finished: number of epochs finished before.
        steps_per_epoch: optimizer steps in an epoch.
        writes: whether this process writes files; the others collect only.
    """

    def __init__(
        self,
        directory: RunDirectory[Any, Any],
        kind: type[SomeRow],
        *,
        finished: int,
        steps_per_epoch: int,
        writes: bool,
    ) -> None:
        self._directory = directory
        self._kind = kind
        self._steps_per_epoch = steps_per_epoch
        self.rows: list[SomeRow] = read_epochs(directory.epochs, kind, finished) if finished else []
        self.losses: list[float] = []
        if finished:
            self.losses = pd.read_parquet(directory.steps)["loss"].tolist()[: finished * steps_per_epoch]
        self._board = self._open_board() if writes else None

    def add_losses(self, losses: Sequence[float]) -> None:
        """The losses (nats) of the next steps, in order."""
        first = len(self.losses) + 1
        self.losses.extend(losses)
        if self._board is not None:
            for step, loss in enumerate(losses, first):
                self._board.log_metrics({"step/loss": loss}, step)

    def add_epoch(self, row: SomeRow) -> None:
        """A finished epoch."""
        self.rows.append(row)
        if self._board is not None:
            values = {f"epoch/{name}": value for name, value in asdict(row).items() if value is not None}
            self._board.log_metrics(values, len(self.losses))

    def write(self) -> None:
        """Write both tables, each at once, and what TensorBoard shows."""
        if self._board is None:
            return
        _write(self._directory.epochs, epochs_table(self.rows, self._kind))
        _write(self._directory.steps, self._steps_table())
        self._board.save()

    def close(self) -> None:
        """Close TensorBoard's file."""
        if self._board is not None:
            self._board.finalize("success")

    def _steps_table(self) -> pd.DataFrame:
        """Columns step and epoch, both from 1, and loss (nats)."""
        step = pd.RangeIndex(1, len(self.losses) + 1)
        return pd.DataFrame(
            {
                "step": step.to_numpy(),
                "epoch": (step.to_numpy() - 1) // self._steps_per_epoch + 1,
                "loss": pd.Series(self.losses, dtype="float64"),
            }
        )

    def _open_board(self) -> TensorBoardLogger:
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        # TensorBoard drops the steps of an interrupted run after its last finished epoch.
        path = self._directory.tensorboard
        return TensorBoardLogger(path.parent, name="", version=path.name, purge_step=len(self.losses) + 1)


def epochs_table(rows: Sequence[SomeRow], kind: type[SomeRow]) -> pd.DataFrame:
    """The rows as a table with the fields of their type as columns; None becomes NaN."""
    columns = [field.name for field in fields(kind)]
    table = pd.DataFrame([asdict(row) for row in rows], columns=columns)
    return table.astype({name: "int64" if name == "epoch" else "float64" for name in columns})


def read_epochs(path: Path, kind: type[SomeRow], finished: int) -> list[SomeRow]:
    """The rows of the first `finished` epochs in a written table."""
    may_be_none = [field.name for field in fields(kind) if str(field.type).endswith("None")]
    rows = []
    for values in pd.read_parquet(path).to_dict("records"):
        named = {str(name): value for name, value in values.items()}
        named.update({name: None for name in may_be_none if pd.isna(named[name])})
        if named["epoch"] <= finished:
            rows.append(kind(**named))
    return rows


def _write(path: Path, table: pd.DataFrame) -> None:
    with replaced(path) as part:
        table.to_parquet(part, index=False)
