"""How the paper's image networks are trained, and how much of it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from normless.sweeps import RateGrid, Sweep, SweepResult, axes_as_printed
from normless_papers.artefact import Context
from normless_papers.run_summary import final_table

RATE = 0.1
"""The largest learning rate that networks with batch norm are trained at by default."""
REPLICATES = 5
DECAY_POLICY = "all"
"""What decays, of any method: the text only says that weight decay has its default; in PyTorch, which the authors'
code uses, that is every parameter, and their optimizers give it to the groups of biases and of scales too."""


def wide_resnet_text(depth: int, width: int) -> str:
    """A Wide-ResNet as text, its convolutions from He's variance 2 / fan-out, as in the code of Fixup's authors."""
    return f"normless:wide_resnet(depth={depth}, width={width}, initialization=None)"


@dataclass(frozen=True)
class Effort:
    """How one kind of network is trained.

    Attributes:
        model: the network as text.
        data: the data set as text.
        epochs: of every run.
        batch_size: images in a minibatch.
        replicates: runs of each configuration.
        rates: learning rates of what has no rate of its own.
        crop: zero padding before the random crop of `data`, in pixels; its default if None.
        settings: further settings of every run.
        reduced: why what depends on the paper's network and training may come out otherwise; else empty.
    """

    model: str
    data: str
    epochs: int
    batch_size: int = 128
    replicates: int = REPLICATES
    rates: tuple[float, ...] = (RATE,)
    crop: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    reduced: str = ""

    def sweep(
        self,
        context: Context,
        name: str,
        axes: Mapping[str, Mapping[str, Mapping[str, Any]]],
        *,
        rates: tuple[float, ...] | None = None,
        **settings: Any,
    ) -> Sweep:
        """A sweep whose rates are never extended.

        Args:
            context: whose data and first seed are taken.
            name: of the sweep.
            axes: as in `Sweep`.
            rates: learning rates; those of the effort if None.
            settings: of every run, before those of the axes.
        """
        base: dict[str, Any] = {
            "model": self.model,
            "data": context.data_or(self.data),
            "data_root": context.data_root,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "crop": self.crop if context.data is None else None,
            "momentum": 0.9,
            "decay_policy": DECAY_POLICY,
            **self.settings,
            **settings,
        }
        grid = RateGrid(self.rates if rates is None else rates, None)
        return Sweep(name, base, axes_as_printed(axes), grid, self.replicates, self.replicates, context.seed)


def reduction_of(context: Context, effort: Effort) -> str:
    """What is less than, or other than, the paper's training, as a sentence; empty if nothing is."""
    if effort.reduced or context.keeps(effort.data):
        return effort.reduced
    return f"{context.data} stands in the place of {effort.data}."


def with_curves(result: SweepResult) -> pd.DataFrame:
    """The final table with `curve`: training accuracy over all epochs of a run, in percent; chance where it diverged.

    It is the mean height of the curve of training, and so says how fast a network learns.
    """
    table = final_table(result)
    heights = 100 * result.epochs.groupby("hash")["training_accuracy"].mean()
    curve = table["hash"].map(heights).astype(float)
    return table.assign(curve=curve.where(table["outcome"] != "diverged", table["chance_accuracy"]))
