"""The curves of a run: a row per epoch and the loss of every step, in Parquet and for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normless.train.directory import RunDirectory, replaced

if TYPE_CHECKING:
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger


class Curves:
    """Collects the `rows` of finished epochs and the `losses` (nats) of all steps, and writes them.

    After an interruption with so many epochs `finished`, those of unfinished ones are dropped. A process that does
    not write collects only.
    """

    def __init__(
        self, directory: RunDirectory[Any, Any], *, finished: int, steps_per_epoch: int, writes: bool
    ) -> None:
        self._directory = directory
        self._row_type = directory.result_type.ROW
        self._steps_per_epoch = steps_per_epoch
        self.rows: list[Any] = []
        self.losses: list[float] = []
        if finished:
            self.rows = read_epochs(directory.epochs, self._row_type)[:finished]
            self.losses = pd.read_parquet(directory.steps)["loss"].tolist()[: finished * steps_per_epoch]
        self._board = self._open_board() if writes else None

    def add_epoch(self, losses: Sequence[float], row: Any | None) -> None:
        """Add the losses of an epoch and its row, None if it diverged; write both tables and TensorBoard's file."""
        first = len(self.losses) + 1
        self.losses.extend(losses)
        if row is not None:
            self.rows.append(row)
        if self._board is None:
            return
        for step, loss in enumerate(losses, first):
            self._board.log_metrics({"step/loss": loss}, step)
        if row is not None:
            values = {f"epoch/{name}": value for name, value in asdict(row).items() if value is not None}
            self._board.log_metrics(values, len(self.losses))
        self._write_tables()
        self._board.save()

    def _write_tables(self) -> None:
        columns = {field.name: "int64" if field.name == "epoch" else "float64" for field in fields(self._row_type)}
        epochs = pd.DataFrame([asdict(row) for row in self.rows], columns=list(columns)).astype(columns)
        step = pd.RangeIndex(1, len(self.losses) + 1).to_numpy()
        epoch = (step - 1) // self._steps_per_epoch + 1
        steps = pd.DataFrame({"step": step, "epoch": epoch, "loss": pd.Series(self.losses, dtype="float64")})
        for path, table in ((self._directory.epochs, epochs), (self._directory.steps, steps)):
            with replaced(path) as part:
                table.to_parquet(part, index=False)

    def close(self) -> None:
        """Close TensorBoard's file."""
        if self._board is not None:
            self._board.finalize("success")

    def _open_board(self) -> TensorBoardLogger:
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        # TensorBoard drops the steps of an interrupted run after its last finished epoch.
        path = self._directory.tensorboard
        return TensorBoardLogger(path.parent, name="", version=path.name, purge_step=len(self.losses) + 1)


def read_epochs(path: Path, row_type: type[Any]) -> list[Any]:
    """The rows in a written table; NaN in a field that may be None is None."""
    optional = [field.name for field in fields(row_type) if str(field.type).endswith("None")]
    rows: list[dict[Any, Any]] = pd.read_parquet(path).to_dict("records")
    return [row_type(**row | {name: None for name in optional if pd.isna(row[name])}) for row in rows]
