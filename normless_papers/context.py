"""In what an artefact is reproduced, besides its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from normless_papers.budgets import Budget


@dataclass(frozen=True)
class Context:
    """The arguments of an artefact's function besides its settings.

    Attributes:
        directory: an existing folder for files of the artefact.
        data: the user's data set in place of the budget's, as text such as cifar10.
        data_root: folder of the data sets; the default folder if None.
        seed: the first seed; replicates count up from it.
        weights: the user's pretrained network, for the artefacts of `normless_papers.gamma.pretrained`.
    """

    budget: Budget
    directory: Path
    data: str | None = None
    data_root: str | None = None
    seed: int = 0
    weights: str | None = None

    def keeps(self, data: str) -> bool:
        """Whether the user asks for no other data than the budget's."""
        return self.data in (None, data)

    def data_or(self, default: str) -> str:
        """Return the user's data set, or else the budget's."""
        return self.data or default
