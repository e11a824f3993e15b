"""How Bjorck et al. train (section 1.2, appendix B), and how much of it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from normless.sweeps import RateGrid, Sweep, axes_as_printed
from normless_papers.artefact import Context

# The printed set, and those rates that the paper's results use beside it: 0.03, 0.01 and 0.002.
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 1e-2, 3e-2, 1e-1)
REPLICATES = 5
DEPTH = 110
DATA = "cifar10"
FIRST_EPOCHS = 165
DOUBLINGS = 4

# An initial learning rate and a number of epochs.
Training = tuple[float, int]

# Of every parameter: "SGD with momentum (0.9) and weight decay (5e-4)", which in pytorch, by which "our code is
# implemented", leaves none out (appendix B).
PROTOCOL: Mapping[str, Any] = MappingProxyType(
    {"momentum": 0.9, "weight_decay": 5e-4, "decay_policy": "all", "schedule": "step"}
)

OPTIMIZER = "SGD, momentum 0.9, weight decay 5e-4 on every parameter"
"""What takes single steps, in words."""

# "For initialization, we use the Xavier-scheme [10]" (appendix B), with norms and without.
_XAVIER = " + Reinitialize(kind='xavier')"
SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        "none": "xavier",
        "batch norm": "batch_norm(initialization='xavier')",
        "batch norm on top": f"only_top_norm{_XAVIER}",
        "alternating": f"alternating_batch_norm{_XAVIER}",
    }
)

PARTS = ("gamma", "beta", "mu", "sigma2")
SUBSETS: tuple[tuple[str, ...], ...] = (
    ("gamma", "beta", "mu", "sigma2"),
    ("gamma", "mu", "sigma2"),
    ("beta", "mu", "sigma2"),
    ("mu", "sigma2"),
    ("sigma2",),
    ("mu",),
    (),
)
"""The subsets of batch norm's parts in table 2."""


def parts_text(parts: tuple[str, ...]) -> str:
    """A subset as the published tables have it as text: gamma, beta, mu, sigma2."""
    return ", ".join(parts)


def parts_scheme(parts: tuple[str, ...]) -> str:
    """The scheme that keeps some of batch norm's parts, with Xavier's weights."""
    if not parts:
        return SCHEMES["none"]
    if parts == PARTS:
        return SCHEMES["batch norm"]
    names = {"mean": "mu", "variance": "sigma2", "gamma": "gamma", "beta": "beta"}
    arguments = ", ".join(f"{name}={part in parts}" for name, part in names.items())
    return f"partial_batch_norm({arguments}){_XAVIER}"


@dataclass(frozen=True)
class Effort:
    """How much of the protocol is carried out; by default all of it.

    Attributes:
        depth: of the CIFAR ResNet that stands for ResNet-110.
        data: the data set as text.
        batch_size: images in a minibatch.
        rates: learning rates that are searched, increasing.
        replicates: runs of each configuration.
        epochs: of every run of a search, at first.
        doublings: how often the epochs of a search are doubled until the loss plateaus; 0 for a fixed number.
        crop: zero padding before the random crop of `data`, in pixels; its default if None.
        low: rate and epochs that the unnormalized network is trained with.
        middle: those between.
        high: those of the original, normalized network.
        top: those of a network with batch norm on top only.
        warm_start: those of a warm start.
        shallower: depths that stand for 32 and 56, the shallower networks of table 3.
    """

    depth: int = DEPTH
    data: str = DATA
    batch_size: int = 128
    rates: tuple[float, ...] = RATES
    replicates: int = REPLICATES
    epochs: int = FIRST_EPOCHS
    doublings: int = DOUBLINGS
    crop: int | None = None
    low: Training = (1e-4, 2400)
    middle: Training = (3e-3, 1320)
    high: Training = (1e-1, 165)
    top: Training = (3e-2, 330)
    warm_start: Training = (1e-4, 1)
    shallower: tuple[int, int] = (32, 56)

    def network(self, depth: int | None = None) -> str:
        """The CIFAR ResNet of this effort's depth, or of another, as text."""
        return f"normless:resnet_cifar(depth={self.depth if depth is None else depth})"

    def searched(self) -> dict[str, Any]:
        """The epochs of a run whose number of epochs is searched, doubling from the first."""
        if not self.doublings:
            return {"epochs": self.epochs}
        return {"epochs": self.epochs, "epochs_until_plateau": True, "max_doublings": self.doublings}

    def sweep(
        self,
        context: Context,
        name: str,
        axes: Mapping[str, Mapping[str, Mapping[str, Any]]],
        *,
        settings: Mapping[str, Any] | None = None,
    ) -> Sweep:
        """A sweep by the protocol; its rates are never extended, since the paper's set is closed.

        Args:
            context: whose data and first seed are taken.
            name: of the sweep.
            axes: as in `Sweep`.
            settings: of every run, before those of the axes.
        """
        base = {
            **PROTOCOL,
            "model": self.network(),
            "data": context.data_or(self.data),
            "data_root": context.data_root,
            "batch_size": self.batch_size,
            "crop": self.crop if context.data is None else None,
            **(settings or {}),
        }
        return Sweep(
            name,
            base,
            axes_as_printed(axes),
            RateGrid(self.rates, None),
            self.replicates,
            self.replicates,
            context.seed,
        )

    def reduction(self, context: Context) -> str:
        """What is less than the paper's networks, data and epochs, as a sentence; empty if nothing is."""
        data = context.data_or(self.data)
        if self.depth >= DEPTH and self.epochs >= FIRST_EPOCHS and data == DATA:
            return ""
        return (
            f"ResNet-{self.depth} on {data}, {self.epochs} epochs at first, is not the paper's ResNet-{DEPTH} on "
            f"CIFAR-10, {FIRST_EPOCHS} epochs at first."
        )
