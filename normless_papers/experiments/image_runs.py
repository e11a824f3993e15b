"""Image runs as the papers train: with a warm start, and with epochs that are doubled until a plateau."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from normless_lab.sweeps import Kind
from normless_lab.train import NonNegativeInt, PositiveFloat, RunResult, TrainConfig


@dataclass(frozen=True, kw_only=True)
class PaperConfig(TrainConfig):
    """An image run, with what the papers' protocols have besides.

    Args:
        warm_start_epochs: first epochs, trained at warm_start_rate; they count among the epochs.
        warm_start_rate: learning rate of these, before the groups' multipliers.
        epochs_until_plateau: train anew with twice the epochs until the training loss plateaus (Bjorck et al. 2018,
            appendix B).
        max_doublings: how often the epochs may be doubled.
        record: measure the norms of γ and the stream of the network at the end; see `PaperResult`.
    """

    KIND: ClassVar[str] = "train-paper"
    TASK: ClassVar[str] = "train-paper"
    ADDED: ClassVar[Mapping[str, Any]] = {**TrainConfig.ADDED, "record": False}

    warm_start_epochs: NonNegativeInt = 0
    warm_start_rate: PositiveFloat = 1e-4
    epochs_until_plateau: bool = False
    max_doublings: NonNegativeInt = 3
    record: bool = False

    @property
    def is_one_training(self) -> bool:
        """See `Settings.is_one_training`."""
        return not self.epochs_until_plateau

    def conflicts(self) -> Iterator[str]:
        """See `Settings.conflicts`."""
        yield from super().conflicts()
        if self.warm_start_epochs >= self.epochs:
            warm_start = f"got {self.warm_start_epochs}: the warm start is part of the training."
            yield f"Expected warm_start_epochs below epochs={self.epochs}, {warm_start}"
        if self.epochs_until_plateau and self.epochs < 2:
            yield (
                "epochs_until_plateau compares the training losses of epochs, so it needs epochs of 2 or more, "
                f"got {self.epochs}."
            )


@dataclass(frozen=True, kw_only=True)
class PaperResult(RunResult):
    """How such a run ended.

    Attributes:
        doublings: the number of times that the epochs were doubled.
        records: the tables of the probes `gammas` and `stream` of the network at the end, on the first test images
            and their batch statistics, each with its `columns` and `rows`; None of runs that diverged or have no
            `record`.
    """

    doublings: int = 0
    records: Mapping[str, Any] | None = None


KIND = Kind.of_training(f"{__name__}:PaperConfig", f"{__name__}:PaperResult", {"doublings": "doublings"})
