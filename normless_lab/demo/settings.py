"""The settings of the demo, and the two sweeps that they describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from normless_lab.sweeps import check_fields
from normless_lab.train import Device

if TYPE_CHECKING:
    from normless_lab.sweeps import Sweep

Count = Annotated[int, Field(gt=0)]


@dataclass(frozen=True)
class DemoSettings:
    """Wide-ResNets of every depth with every scheme, each at its own best learning rate, for a few epochs.

    Raises a ValueError for inconsistent settings.

    Args:
        depths: depths in layers, each 6b + 4.
        schemes: names of schemes; `batch_norm` is the control that decides which of the others trained.
        epochs: passes over the data set per run.
        rates: learning rates; every scheme is tried at each for an epoch, and the best goes on.
        batch_size: examples per step.
        seed: of initialization, order of examples and augmentation.
        out: folder for figures, page and runs.
        workers: processes that share the cores; one per core if null.
        width: width factor of the networks.
        data: images, as digits(train=704), the first 704 of scikit-learn's.
        device: the kind of processor that trains; auto is cuda where available.
    """

    depths: Annotated[tuple[int, ...], Field(min_length=1)] = (16, 100, 400)
    schemes: Annotated[tuple[str, ...], Field(min_length=1)] = ("none", "skipinit", "fixup", "batch_norm")
    epochs: Count = 3
    rates: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)] = (0.05, 0.1)
    batch_size: Count = 32
    seed: int = 0
    out: Path = Path("normless-demo")
    workers: Count | None = None
    width: Count = 1
    data: str = "digits(train=704)"
    device: Device = "cpu"

    def __post_init__(self) -> None:
        from normless.models import blocks_per_stage
        from normless.schemes import scheme

        check_fields(self, ValueError)
        for name in ("depths", "schemes", "rates"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"Expected {name} to be different values, got {list(values)}.")
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f"Expected a folder to write to, but {self.out} is a file; name another with --out.")
        for depth in self.depths:
            blocks_per_stage(depth, 4, "A Wide-ResNet")
        for text in self.schemes:
            scheme(text)

    def model(self, depth: int) -> str:
        """The network of a depth, as `normless.models.build_model` takes it."""
        return f"normless:wide_resnet(depth={depth}, width={self.width})"

    @property
    def networks(self) -> dict[str, tuple[int, str]]:
        """Depth and scheme by label, the deepest first: the longest run should not be the last one to start."""
        depths = sorted(self.depths, reverse=True)
        return {f"depth {depth}, {scheme}": (depth, scheme) for depth in depths for scheme in self.schemes}

    def first_epochs(self) -> Sweep:
        """One epoch of every network at every rate, with the schedule of the whole budget."""
        networks: dict[str, dict[str, Any]] = {label: {} for label in self.networks}
        kind = "normless_lab.demo.first_epoch:FIRST_EPOCH"
        return self._sweep("first epoch", networks, sorted(self.rates), run=kind, keep_weights=True)

    def whole_runs(self, rates: Mapping[str, float]) -> Sweep:
        """The whole budget of every network, at a rate for each label of `networks`."""
        settings = {label: {"rate": rate} for label, rate in rates.items()}
        return self._sweep("best rates, to the end", settings, [min(self.rates)])

    def _sweep(
        self, name: str, settings: Mapping[str, Mapping[str, Any]], rates: Sequence[float], **changes: Any
    ) -> Sweep:
        from normless_lab.sweeps import RateGrid, Sweep, without_kept_scale

        base = {
            "data": self.data,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            # The papers' hold_then_halve gives the last of three epochs at most a sixteenth of the rate.
            "schedule": "linear",
            # A pixel is an eighth of a digit: shifted digits need more epochs than a demo has.
            "crop": 0,
            "device": self.device,
        }
        networks = {
            label: {"model": self.model(depth), "scheme": without_kept_scale(scheme), **settings[label]}
            for label, (depth, scheme) in self.networks.items()
        }
        grid = RateGrid(tuple(rates), None)
        return Sweep(name, base, {"network": networks}, grid, replicates=1, best=1, seed=self.seed, **changes)
