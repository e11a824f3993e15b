"""The training of networks of a kind, and how much of the papers' training a budget carries out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from normless.spec import parse_call
from normless_lab.data import sources_of
from normless_lab.sweeps import RateGrid, Sweep
from normless_papers.budgets import About, Budget, Data, DataName, Network, NetworkName, Seeds
from normless_papers.experiments.image_runs import PaperConfig
from normless_papers.networks.seeded_inputs import axes_as_printed
from normless_papers.text.text_sets import LabelledText, ParallelText

if TYPE_CHECKING:
    from pathlib import Path

    from normless.probes import RideAlong
    from normless_lab.sweeps import Laboratory
    from normless_lab.train import Settings
    from normless_papers.context import Context

Axes = Mapping[str, Mapping[str, Mapping[str, Any]]]

# The kind of data of the runs that do not train on images.
_TEXTS = MappingProxyType({"train-text": LabelledText, "train-translation": ParallelText})


def _grid(value: Any) -> Any:
    """Return a grid of a list of rates, never extended, or of `{exponents: of two, extensions: at each end}`."""
    if isinstance(value, Mapping):
        rates = tuple(2.0**exponent for exponent in value["exponents"])
        return RateGrid(rates, _step(rates), value["extensions"])
    return RateGrid(tuple(value), None) if isinstance(value, (list, tuple)) else value


def _step(rates: tuple[float, ...]) -> float | None:
    return min((high / low for low, high in pairwise(rates)), default=None)


@dataclass(frozen=True)
class Plateau:
    """The test accuracy in percent that a control reaches when trained on.

    Attributes:
        control: its labels by axis.
        source: where the accuracy is published.
    """

    control: Mapping[str, str | int]
    accuracy: float
    source: str


@dataclass(frozen=True)
class TrainingSweeps:
    """Sweeps with the same axes, whose learning rates are extended until the optima by the metrics lie inside.

    Attributes:
        control: labels of the method that decides which others train; may be empty.
        reduction: how the training is smaller than the paper's, as a sentence; may be empty.
        plateau: what the control reaches when trained on; None if it is not known.
        probes, folder: probes of the runs at the best rates, and the folder for the folders of these runs; if there
            is one rate alone, all runs are recorded while they are trained.
    """

    sweeps: tuple[Sweep, ...]
    metrics: tuple[str, ...] = ("test_accuracy",)
    control: Mapping[str, str] = field(default_factory=dict)
    reduction: str = ""
    plateau: Plateau | None = None
    probes: RideAlong | None = field(default=None, compare=False)
    folder: Path | None = None

    def recorded(self, laboratory: Laboratory, configs: Sequence[Settings]) -> list[Path]:
        """Train some runs with the probes unless they were recorded; return their folders."""
        return laboratory.weights(configs, ride_along=self.probes, keep=self.folder)


@dataclass(frozen=True)
class Effort:
    """The training of networks of a kind.

    Attributes:
        data, model: as text; the model is empty if an axis of the sweep names it.
        run: the kind of run.
        epochs, batch_size: of every run, unless an axis sets it.
        crop: zero padding before the random crop of `data`, in pixels; its default if None.
        rates: learning rates of every combination that does not set its own.
        replicates: runs at each rate.
        best: how many of them count; all if None.
        settings: further settings of every run.
        variants: settings of variants by name that depend on the budget.
        channels: of the first stage of a ResNet-50, all others in proportion; the published 64 if None.
        folder: of the data set, below that of the data sets.
        plateau: what the control reaches when trained on with this data and network; None if that is not known, so
            that no failed check contradicts the paper.
        reduced: how the training is smaller than the paper's, as a sentence; may be empty.
        further: what differs where networks with weights are trained further; see `of_weights`.
    """

    data: DataName[str]
    model: NetworkName[str] = ""
    run: About[str] = PaperConfig.KIND
    epochs: int | None = None
    batch_size: int | None = None
    crop: Data[int | None] = None
    rates: Annotated[RateGrid, BeforeValidator(_grid)] = field(default_factory=lambda: RateGrid((0.1,), None))
    replicates: Seeds[int] = 1
    best: Seeds[int | None] = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    channels: Network[int | None] = None
    folder: About[str] = ""
    plateau: About[Plateau | None] = None
    reduced: About[str] = ""
    # Not shown: results without weights do not depend on it.
    further: About[Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def of_weights(self) -> Effort:
        """The effort to train networks with weights further."""
        further = {name: _grid(value) if name == "rates" else value for name, value in self.further.items()}
        return replace(self, **further, further={})

    @property
    def step(self) -> float:
        """The factor between neighbouring learning rates, the precision of an optimum; ∞ for a single rate."""
        return _step(self.rates.rates) or math.inf

    def data_in(self, context: Context) -> str:
        """Return the user's data set, or this one if the user names none or one of another modality."""
        kind = _TEXTS.get(self.run)
        if context.data is None or (kind is not None and parse_call(context.data)[0] not in sources_of(kind)):
            return self.data
        return context.data

    def reduction(self, context: Context) -> str:
        """Return how the training differs from the paper's, as a sentence; may be empty."""
        if self.reduced or self.data_in(context) == self.data:
            return self.reduced
        return f"{context.data} stands in for {self.data}."

    def sweep(
        self,
        context: Context,
        name: str,
        axes: Axes,
        *,
        rates: RateGrid | tuple[float, ...] | None = None,
        **settings: Any,
    ) -> Sweep:
        """Return a sweep over some axes with the context's data and first seed, and further settings of every run.

        Schemes of image networks leave the weights as the papers draw them. `rates` replaces the effort's grid; a
        tuple is not extended.
        """
        root = f"{context.data_root or '.'}/{self.folder}" if self.folder else context.data_root
        base = {
            "model": self.model or None,
            "data": self.data_in(context),
            "data_root": root,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "crop": self.crop if context.data is None else None,
            **self.settings,
            **settings,
        }
        grid = RateGrid(rates, None) if isinstance(rates, tuple) else rates or self.rates
        return Sweep(
            name,
            {setting: value for setting, value in base.items() if value is not None},
            axes_as_printed(axes) if self.run == PaperConfig.KIND else axes,
            grid,
            self.replicates,
            self.best or self.replicates,
            context.seed,
            self.run,
        )

    def training(
        self,
        context: Context,
        *sweeps: Sweep,
        metrics: tuple[str, ...] = ("test_accuracy",),
        control: Mapping[str, str] | None = None,
    ) -> TrainingSweeps:
        """Return the training of sweeps with the same axes by this effort."""
        return TrainingSweeps(sweeps, metrics, control or {}, self.reduction(context), self.plateau)


def of_weights(settings: Mapping[Budget, Mapping[str, Any]]) -> dict[Budget, dict[str, Any]]:
    """Return the settings of an artefact by budget with the efforts to train networks with weights further."""
    return {
        budget: {name: value.of_weights if isinstance(value, Effort) else value for name, value in own.items()}
        for budget, own in settings.items()
    }
