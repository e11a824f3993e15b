"""How Bjorck et al. train (section 1.2, appendix B), and how much of it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from normless.lab.rates import RateGrid
from normless.lab.sweep import Sweep
from normless.papers.artefact import Context

# The printed set, and those rates that the paper's results use beside it: 0.03, 0.01 and 0.002.
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 1e-2, 3e-2, 1e-1)
REPLICATES = 5
FIRST_EPOCHS = 165
DOUBLINGS = 4

# What decays is not said. The code is in PyTorch (appendix B), whose weight decay is on every parameter.
PROTOCOL: Mapping[str, Any] = MappingProxyType(
    {"momentum": 0.9, "weight_decay": 5e-4, "decay_policy": "all", "schedule": "step"}
)

OPTIMIZER = "SGD, momentum 0.9, weight decay 5e-4 on every parameter"
"""What takes single steps, in words."""

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
        shorter: the paper's numbers of epochs are divided by this.
        least: epochs of every run at least.
        crop: zero padding before the random crop of `data`, in pixels; its default if None.
        doublings: how often the epochs of a search are doubled until the loss plateaus; 0 for a fixed number.
    """

    depth: int = 110
    data: str = "cifar10"
    batch_size: int = 128
    rates: tuple[float, ...] = RATES
    replicates: int = REPLICATES
    shorter: float = 1.0
    least: int = 1
    doublings: int = DOUBLINGS
    crop: int | None = None

    def epochs(self, published: int) -> int:
        """For how many epochs to train what the paper trains for so many."""
        return max(self.least, round(published / self.shorter))

    def network(self, depth: int | None = None) -> str:
        """The CIFAR ResNet of this effort's depth, or of another, as text."""
        return f"normless:resnet_cifar(depth={self.depth if depth is None else depth})"

    def searched(self, epochs: int = FIRST_EPOCHS) -> dict[str, Any]:
        """The epochs of a run whose number of epochs is searched, doubling from the paper's first."""
        if not self.doublings:
            return {"epochs": self.epochs(epochs)}
        return {"epochs": self.epochs(epochs), "epochs_until_plateau": True, "max_doublings": self.doublings}

    def sweep(
        self,
        context: Context,
        name: str,
        axes: Mapping[str, Mapping[str, Mapping[str, Any]]],
        *,
        settings: Mapping[str, Any] | None = None,
        rates: tuple[float, ...] | None = None,
    ) -> Sweep:
        """A sweep by the protocol; its rates are never extended, since the paper's set is closed.

        Args:
            context: whose data and first seed are taken.
            name: of the sweep.
            axes: as in `Sweep`.
            settings: of every run, before those of the axes.
            rates: learning rates; those of the effort if None.
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
        grid = RateGrid(self.rates if rates is None else rates, None)
        return Sweep(name, base, axes, grid, self.replicates, self.replicates, context.seed)

    @property
    def whole(self) -> bool:
        """Whether networks and epochs are the paper's."""
        return self.depth >= 110 and self.shorter <= 1

    @property
    def reduction(self) -> str:
        """Why what depends on depth and on long training may come out otherwise; empty if nothing is smaller."""
        if self.whole:
            return ""
        return (
            f"ResNet-{self.depth} on {self.data} for 1/{self.shorter:g} of the epochs is not the paper's ResNet-110 "
            "on CIFAR-10."
        )


SMOKE = Effort(
    depth=56,
    data="digits(train=704)",
    batch_size=32,
    rates=(1e-3, 1e-2, 1e-1),
    replicates=2,
    shorter=1000,
    least=2,
    doublings=0,
)
PAPER = Effort()
