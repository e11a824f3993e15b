"""Bjorck et al.'s network at initialization, with batch norm and without, and an observed pass through it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from torch import Tensor, nn

from normless.models import resnet_cifar
from normless.probes import ChannelMoments, GradientMoments, LogitGradients, Watcher, observe
from normless_lab.data import ImageData, load_data
from normless_lab.plots import new_panels
from normless_papers import probes
from normless_papers.artefact import Context, Evidence
from normless_papers.claims import Claim, Estimate, quantity_table, replicates
from normless_papers.claims.declared import ClaimRow, by_draw
from normless_papers.evidence import QUANTITY
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.probes.class_gradients import classwise_elements, classwise_gradients

SCHEMES = MappingProxyType({False: "xavier", True: 'batch_norm(initialization="xavier")'})
"""The schemes without batch norm and with it, both with Xavier's weights."""
INKS = MappingProxyType({False: "none", True: "batch_norm"})
"""The schemes that give the two networks their colours and names in figures and tables."""

OPTIMIZER = "SGD, momentum 0.9, weight decay 5e-4 on every parameter"
"""The optimizer of single steps, in words."""

PUBLISHED_BATCH, PUBLISHED_SIDE = 128, 32


def conv_path(layer: int) -> str:
    """Return the path of convolution number 2, 3, … of a CIFAR ResNet; number 1 is the stem."""
    if layer < 2:
        raise ValueError(f"Layers from 2 on are in residual blocks; {layer} is not.")
    return f"blocks.{(layer - 2) // 2}.conv{1 + layer % 2}"


@dataclass(frozen=True)
class Initializations:
    """Random draws of the paper's ResNets, each with its own minibatches.

    The user's data set takes precedence over `data`; both kinds of network of one draw share their minibatches.
    """

    context: Context
    data: str
    batch_size: int
    draws: int
    minibatches: int = 1
    depth: int = 110

    @cached_property
    def images(self) -> ImageData:
        """The data set."""
        return _loaded(self.context.data_or(self.data), self.context.data_root)

    def each(self, *, batch_norm: tuple[bool, ...] = (False, True)) -> Iterator[Draw]:
        """Yield every draw of the networks without batch norm and with it."""
        for number in range(self.draws):
            for kind in batch_norm:
                yield Draw(self, kind, number)

    def measured(
        self, measure: Callable[[Draw], pd.DataFrame], *, batch_norm: tuple[bool, ...] = (False, True)
    ) -> pd.DataFrame:
        """Concatenate the tables of every draw, with `batch_norm`, `scheme` and `draw` as first columns."""
        tables = []
        for draw in self.each(batch_norm=batch_norm):
            table = measure(draw)
            own = table.assign(batch_norm=draw.batch_norm, scheme=INKS[draw.batch_norm], draw=draw.number)
            tables.append(own[["batch_norm", "scheme", "draw", *table.columns]])
        return pd.concat(tables, ignore_index=True)

    def shown(
        self, table_of: Callable[[Draw], pd.DataFrame], *, batch_norm: tuple[bool, ...] = (False, True)
    ) -> pd.DataFrame:
        """Concatenate the tables of the first draw, which figures show, with the column `scheme`."""
        first = (Draw(self, kind, 0) for kind in batch_norm)
        return pd.concat(table_of(draw).assign(scheme=INKS[draw.batch_norm]) for draw in first)

    def side_by_side(self, draw: Callable[[Draw, Axes, str], object], **size: Any) -> Axes:
        """Draw a panel for the first draw without batch norm and one with it; `draw` gets the start of its title."""
        panels = new_panels(2, **size)
        for axes, kind, title in zip(panels, (False, True), ("Without batch norm", "With batch norm"), strict=True):
            draw(Draw(self, kind, 0), axes, title)
        return panels[0]

    def evidence(
        self,
        measure: Callable[[Draw], pd.DataFrame],
        *remarks: str,
        draw: Callable[[], Axes],
        quantities: Callable[[MeasuredDraws], Mapping[str, Estimate | float]] | None = None,
        batch_norm: tuple[bool, ...] = (False, True),
        **setup: Any,
    ) -> Evidence:
        """Return evidence whose facts are a table of every draw, which is also measured without `quantities`."""
        facts = MeasuredDraws(self.measured(measure, batch_norm=batch_norm), self.fewer, self.reduction)
        measured = facts.table if quantities is None else quantity_table(quantities(facts))
        return self.evidence_of(measured, facts, *remarks, draw=draw, **setup)

    def evidence_of(
        self,
        measured: pd.DataFrame,
        facts: Any,
        *remarks: str,
        draw: Callable[[], Axes] | None,
        on: tuple[str, ...] = QUANTITY,
        **setup: Any,
    ) -> Evidence:
        """Return a table as evidence, matched with published numbers by `on`."""
        first = self.context.seed
        shared = {
            "network": f"CIFAR ResNet-{self.depth} (ReLU after the sum) at initialization, Xavier weights",
            "without batch norm": SCHEMES[False],
            "with batch norm": SCHEMES[True],
            "data": self.images.provenance,
            "augmentation": str(self.images.default_augmentation),
            "batch size": self.batch_size,
            "draws": self.draws,
            "seeds": f"{first} to {first + self.draws - 1}",
        }
        return Evidence(measured, facts, shared | setup, on, draw, remarks, self.reduction)

    @property
    def fewer(self) -> str:
        """Why gradients sum fewer terms than the paper's, or the network is shallower; empty if neither."""
        side = min(self.images.image_shape[1:])
        if self.batch_size >= PUBLISHED_BATCH and side >= PUBLISHED_SIDE and self.depth >= 110:
            return ""
        return (
            f"minibatches of {self.batch_size} images of {side}×{side} have fewer summands than the paper's "
            f"{PUBLISHED_BATCH} of {PUBLISHED_SIDE}×{PUBLISHED_SIDE}."
        )

    @property
    def reduction(self) -> str:
        """`fewer`, or else that the data are not CIFAR-10; empty for the paper's set-up."""
        name = self.context.data_or(self.data)
        return self.fewer or ("" if name == "cifar10" else f"{name} is not CIFAR-10.")


@dataclass(frozen=True)
class Draw:
    """One network at initialization, numbered from 0, and its first minibatches; both are built on first use."""

    setting: Initializations
    batch_norm: bool
    number: int

    @cached_property
    def model(self) -> nn.Module:
        """The network."""
        images = self.setting.images
        with seeded(self.setting.context.seed + self.number):
            network = resnet_cifar(self.setting.depth, classes=images.classes, in_channels=images.image_shape[0])
            return convert(network, SCHEMES[self.batch_norm])

    @cached_property
    def batches(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Inputs (B, C, H, W) and classes (B,) of the epoch's first minibatches, with the paper's augmentation."""
        setting, images = self.setting, self.setting.images
        seed, augmentation = setting.context.seed + self.number, images.default_augmentation
        epoch = images.train_batches(setting.batch_size, seed=seed, epoch=0, augmentation=augmentation)
        return tuple((batch.inputs, batch.targets) for batch in islice(epoch, setting.minibatches))

    @property
    def inputs(self) -> Tensor:
        """The inputs of the first minibatch."""
        return self.batches[0][0]

    @property
    def targets(self) -> Tensor:
        """The classes of the first minibatch."""
        return self.batches[0][1]

    @property
    def key(self) -> tuple[Hashable, ...]:
        """A key of the network and its first minibatch."""
        setting, context = self.setting, self.setting.context
        data = (context.data_or(setting.data), context.data_root, setting.batch_size)
        return (*data, setting.depth, context.seed + self.number, SCHEMES[self.batch_norm])


@lru_cache(maxsize=2)
def _loaded(name: str, root: str | None) -> ImageData:
    """Load a data set; cached, since most artefacts of this paper use the same images."""
    return load_data(name, root=root)


@dataclass(frozen=True)
class MeasuredDraws:
    """The facts of checks: the table of every draw, and what is smaller than the paper's set-up."""

    table: pd.DataFrame
    fewer: str = ""
    reduction: str = ""

    def by_draw(self, *, batch_norm: bool) -> pd.DataFrame:
        """Return the rows of one kind of network, indexed by draw."""
        return self.table[self.table["batch_norm"] == batch_norm].set_index("draw")

    def claimed(self, row: ClaimRow) -> list[Claim]:
        """Return the check of a declared claim."""
        return by_draw(row, self)

    def series(self, column: str, label: str, *, batch_norm: bool) -> pd.Series:
        """Return a column of one kind of network, the mean over the rows of each draw, or those of a label."""
        rows, (name, _, value) = self.by_draw(batch_norm=batch_norm), label.partition("=")
        if label:
            rows = rows[rows[name].astype(str) == value]
        values: pd.Series = rows.groupby(level="draw")[column].mean()
        return values

    @property
    def both(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """`by_draw` without batch norm and with it."""
        return self.by_draw(batch_norm=False), self.by_draw(batch_norm=True)

    def estimates(self, name: str) -> tuple[Estimate, Estimate]:
        """Return `replicates` of a column without batch norm and with it."""
        without, with_norm = (replicates(rows[name]) for rows in self.both)
        return without, with_norm


def decades(values: pd.Series[float]) -> Estimate:
    """Return `replicates` of log₁₀ of a positive number by draw."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return replicates(pd.Series(np.log10(values.to_numpy(float)), index=values.index))


HISTOGRAM_LAYERS = (9, 45, 81, 83)
SUMMED_LAYERS = (18, 19, 54, 55, 90, 91)
READING_LAYERS = (19, 35, 55, 91)
PARAMETER_LAYERS = (35, 54)
# Every stage has at least this many channels.
HISTOGRAM_CHANNELS = tuple(range(16))
WEIGHT_55, WEIGHT_52 = (f"{conv_path(layer)}.weight" for layer in (55, 52))

# Both kinds of network, in more draws than any budget has.
_MOST: Final = 64

PassTables: TypeAlias = Mapping[str, pd.DataFrame]
"""Tables by name."""

_passes: dict[Hashable, PassTables] = {}


def _once(measure: Callable[[Draw], PassTables]) -> Callable[[Draw], PassTables]:
    """Cache a pass by draw, since most artefacts use the same networks; the oldest results are dropped at a limit."""

    @wraps(measure)
    def measured(draw: Draw) -> PassTables:
        key = (measure.__name__, draw.key)
        if key not in _passes:
            while len(_passes) >= 2 * _MOST:
                del _passes[next(iter(_passes))]
            _passes[key] = measure(draw)
        return _passes[key]

    return measured


@_once
def pass_of(draw: Draw) -> PassTables:
    """Observe one pass on the first minibatch of a draw; return the watchers' tables by name."""

    def paths(layers: tuple[int, ...]) -> list[str]:
        return [conv_path(layer) for layer in layers]

    pairs = probes.ChannelPairs(paths((45,)))
    watchers: dict[str, Watcher] = {
        "moments": ChannelMoments(),
        "activations": probes.ActivationHistograms(layers=paths(HISTOGRAM_LAYERS), channels=HISTOGRAM_CHANNELS),
        "contributions": probes.ChannelContributions(paths(READING_LAYERS)),
        "gradients": GradientMoments(),
        "gradient_histogram": probes.ParameterGradientHistograms(parameters=[WEIGHT_55]),
        "sums": probes.GradientSums(paths(SUMMED_LAYERS)),
        "parameters": probes.ParameterGradients(paths(PARAMETER_LAYERS)),
        "summands": probes.SummandDistribution(conv_path(90), ("largest", "small")),
        "pairs": pairs,
        "channels": probes.ChannelGradients(),
        "logits": LogitGradients(),
        "logits_by_example": probes.LogitGradientMatrix(),
    }
    observe(draw.model, list(watchers.values()), draw.inputs, draw.targets)
    return {name: watcher.table() for name, watcher in watchers.items()} | {"pair_structure": pairs.structure()}


@_once
def class_pass_of(draw: Draw) -> PassTables:
    """Measure the gradients of the kernel of layer 52 by class, with all other classes' logit gradients at zero.

    Tables: `sizes`, a row per class with `class`, `mean_abs`, `share` and `predicted_share`; `elements`, a row per
    class and element with `class`, `element` and `gradient`.
    """
    elements = classwise_elements(draw.model, draw.inputs, draw.targets, WEIGHT_52)
    return {"sizes": classwise_gradients(elements), "elements": elements}
