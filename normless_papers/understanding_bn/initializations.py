"""The paper's network at initialization, with batch norm and without, and minibatches of its data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from torch import Tensor, nn

from normless.data import ImageData, load_data
from normless.models import resnet_cifar
from normless.plots import new_panels
from normless.sweeps import convert
from normless_papers.artefact import Context, Evidence
from normless_papers.claims import Estimate, quantity_table, replicates
from normless_papers.seeded_inputs import seeded

SCHEMES = MappingProxyType({False: "xavier", True: 'batch_norm(initialization="xavier")'})
"""Without batch norm and with it, both with Xavier's weights."""
INKS = MappingProxyType({False: "none", True: "batch_norm"})
"""The schemes whose colours and names the two networks have in figures and tables."""

PUBLISHED_BATCH = 128
PUBLISHED_SIDE = 32

PUBLISHED_DATA = "cifar10"
PUBLISHED_DEPTH = 110


def conv_path(layer: int) -> str:
    """The path of convolution number 2, 3, … of a CIFAR ResNet; number 1 is the stem."""
    if layer < 2:
        raise ValueError(f"Layers from 2 on are in residual blocks; {layer} is not.")
    return f"blocks.{(layer - 2) // 2}.conv{1 + layer % 2}"


@dataclass(frozen=True)
class Initializations:
    """Several random draws of the paper's ResNets, each with its own minibatches.

    Attributes:
        context: the user's data set and first seed.
        data: the data set as text, unless the user chooses another.
        batch_size: images in a minibatch.
        draws: number of networks of each kind; both kinds of one draw share their minibatches.
        minibatches: per draw.
        depth: weight layers.
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

    def network(self, batch_norm: bool, draw: int) -> nn.Module:
        """The network of one kind and draw."""
        channels, classes = self.images.image_shape[0], self.images.classes
        with seeded(self.context.seed + draw):
            return convert(resnet_cifar(self.depth, classes=classes, in_channels=channels), SCHEMES[batch_norm])

    def batches(self, draw: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """The first minibatches of the epoch of one draw, with the paper's augmentation."""
        epoch = self.images.train_batches(
            self.batch_size,
            seed=self.context.seed + draw,
            epoch=0,
            augmentation=self.images.default_augmentation,
        )
        return tuple((batch.inputs, batch.targets) for batch in islice(epoch, self.minibatches))

    def each(self, *, batch_norm: tuple[bool, ...] = (False, True)) -> Iterator[Draw]:
        """Every draw of the networks without batch norm and with it."""
        for number in range(self.draws):
            for kind in batch_norm:
                yield Draw(self, kind, number)

    def measured(
        self, measure: Callable[[Draw], pd.DataFrame], *, batch_norm: tuple[bool, ...] = (False, True)
    ) -> pd.DataFrame:
        """The concatenated tables of every draw, with the columns `batch_norm`, `scheme` and `draw` in front."""
        tables = []
        for draw in self.each(batch_norm=batch_norm):
            table = measure(draw).copy()
            for name, value in (("draw", draw.number), ("scheme", INKS[draw.batch_norm])):
                table.insert(0, name, value)
            table.insert(0, "batch_norm", draw.batch_norm)
            tables.append(table)
        return pd.concat(tables, ignore_index=True)

    def shown(
        self, table_of: Callable[[Draw], pd.DataFrame], *, batch_norm: tuple[bool, ...] = (False, True)
    ) -> pd.DataFrame:
        """The concatenated tables of the first draw, the one in figures, with the column `scheme`."""
        first = (Draw(self, kind, 0) for kind in batch_norm)
        return pd.concat(table_of(draw).assign(scheme=INKS[draw.batch_norm]) for draw in first)

    def side_by_side(self, draw: Callable[[Draw, Axes, str], object], **size: Any) -> Axes:
        """A panel for the first draw without batch norm and one with it; `draw` gets the start of its title."""
        panels = new_panels(2, **size)
        for axes, kind, title in zip(panels, (False, True), ("Without batch norm", "With batch norm"), strict=True):
            draw(Draw(self, kind, 0), axes, title)
        return panels[0]

    def evidence(
        self,
        measure: Callable[[Draw], pd.DataFrame],
        *remarks: str,
        draw: Callable[[], Axes],
        quantities: Callable[[Measured], Mapping[str, Estimate | float]] | None = None,
        batch_norm: tuple[bool, ...] = (False, True),
        **setup: Any,
    ) -> Evidence:
        """The evidence whose facts are one table of every draw; that is what is published without `quantities`."""
        facts = Measured(self.measured(measure, batch_norm=batch_norm), self.fewer, self.reduction)
        return Evidence(
            facts.table if quantities is None else quantity_table(quantities(facts)),
            facts,
            self.setup(**setup),
            on=() if quantities is None else ("quantity",),
            draw=draw,
            remarks=remarks,
            reduction=self.reduction,
        )

    @property
    def fewer(self) -> str:
        """Why gradients are sums of fewer terms than the paper's, or the network is shallower; empty if neither."""
        side = min(self.images.image_shape[1:])
        if self.batch_size >= PUBLISHED_BATCH and side >= PUBLISHED_SIDE and self.depth >= PUBLISHED_DEPTH:
            return ""
        return (
            f"minibatches of {self.batch_size} images of {side}×{side} have fewer summands than the paper's "
            f"{PUBLISHED_BATCH} of {PUBLISHED_SIDE}×{PUBLISHED_SIDE}."
        )

    @property
    def reduction(self) -> str:
        """`fewer`, or else that the data are not CIFAR-10; empty for the paper's set-up."""
        name = self.context.data_or(self.data)
        return self.fewer or ("" if name == PUBLISHED_DATA else f"{name} is not CIFAR-10.")

    def setup(self, **more: Any) -> dict[str, Any]:
        """The setup of the evidence."""
        first = self.context.seed
        return {
            "network": f"CIFAR ResNet-{self.depth} (ReLU after the sum) at initialization, Xavier weights",
            "without batch norm": SCHEMES[False],
            "with batch norm": SCHEMES[True],
            "data": self.images.provenance,
            "augmentation": str(self.images.default_augmentation),
            "batch size": self.batch_size,
            "draws": self.draws,
            "seeds": f"{first} to {first + self.draws - 1}",
            **more,
        }


@dataclass(frozen=True)
class Draw:
    """One network at initialization and its first minibatches, both built on first use.

    Attributes:
        setting: the distribution.
        batch_norm: whether it has batch norm.
        number: of the draw, from 0.
    """

    setting: Initializations
    batch_norm: bool
    number: int

    @cached_property
    def model(self) -> nn.Module:
        """The network."""
        return self.setting.network(self.batch_norm, self.number)

    @cached_property
    def batches(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Inputs (B, C, H, W) and classes (B,)."""
        return self.setting.batches(self.number)

    @property
    def inputs(self) -> Tensor:
        """Of the first minibatch."""
        return self.batches[0][0]

    @property
    def targets(self) -> Tensor:
        """Of the first minibatch."""
        return self.batches[0][1]

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Identifies the network and its first minibatch."""
        one = self.setting
        data = (one.context.data_or(one.data), one.context.data_root, one.batch_size)
        return (*data, one.depth, one.context.seed + self.number, SCHEMES[self.batch_norm])


@lru_cache(maxsize=2)
def _loaded(name: str, root: str | None) -> ImageData:
    """Cached, since most artefacts of this paper use the same images."""
    return load_data(name, root=root)


@dataclass(frozen=True)
class Measured:
    """A table of every draw, as the facts of an artefact's checks.

    Attributes:
        table: as `Initializations.measured` returns it.
        fewer: as `Initializations.fewer`.
        reduction: as `Initializations.reduction`.
    """

    table: pd.DataFrame
    fewer: str = ""
    reduction: str = ""

    def by_draw(self, *, batch_norm: bool) -> pd.DataFrame:
        """The rows of one kind of network, indexed by draw."""
        return self.table[self.table["batch_norm"] == batch_norm].set_index("draw")

    def pivoted(self, columns: str, values: list[str], *, batch_norm: bool) -> pd.DataFrame:
        """The rows of one kind of network, a row per draw; columns (quantity, label)."""
        rows = self.by_draw(batch_norm=batch_norm).reset_index()
        return rows.pivot(index="draw", columns=columns, values=values)

    @property
    def both(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """`by_draw` without batch norm and with it."""
        return self.by_draw(batch_norm=False), self.by_draw(batch_norm=True)

    def estimates(self, name: str) -> tuple[Estimate, Estimate]:
        """`replicates` of a column without batch norm and with it."""
        without, with_norm = (replicates(rows[name]) for rows in self.both)
        return without, with_norm


def decades(values: pd.Series[float]) -> Estimate:
    """`replicates` of log₁₀ of a positive number by draw."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return replicates(pd.Series(np.log10(values.to_numpy(float)), index=values.index))
