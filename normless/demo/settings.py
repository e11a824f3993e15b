"""What the demo runs: the grid, the budget, and where its results go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from normless.train import TrainConfig


@dataclass(frozen=True)
class DemoSettings:
    """Wide-ResNets of every depth with every scheme, each at its own best learning rate, for a few epochs.

    Args:
        depths: depths in layers, each 6b + 4.
        schemes: names of schemes; `batch_norm` among them is the control that says which of the others trained.
        epochs: passes over the data set per run.
        rates: learning rates; every scheme is tried at each for one epoch.
        batch_size: examples per step.
        seed: of initialization, order of examples and augmentation.
        out: the folder that receives figures and page.
        workers: number of processes; as many as there are cores if None.
        width: width factor of the networks.
        data: name of the data set.

    Raises:
        ValueError: naming the setting, what was expected and what came.
    """

    depths: tuple[int, ...] = (16, 100, 400)
    schemes: tuple[str, ...] = ("none", "skipinit", "fixup", "batch_norm")
    epochs: int = 3
    rates: tuple[float, ...] = (0.025, 0.05, 0.1)
    batch_size: int = 64
    seed: int = 0
    out: Path = Path("normless-demo")
    workers: int | None = None
    width: int = 1
    data: str = "digits"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "width", "workers"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"Expected {name} above 0, got {value}.")
        for name in ("depths", "schemes", "rates"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"Expected {name} to be one or more different values, got {list(values)}.")
        if not min(self.rates) > 0:
            raise ValueError(f"Expected rates above 0, got {list(self.rates)}.")
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f"Expected a folder to write to, but {self.out} is a file; name another with --out.")
        self._check_networks()

    def model(self, depth: int) -> str:
        """The network of a depth as `normless.models.spec` reads it."""
        return f"normless:wide_resnet(depth={depth}, width={self.width})"

    def config(self, depth: int, scheme: str, rate: float) -> TrainConfig:
        """One run, from the weights as the papers draw them."""
        from normless.sweeps import as_printed

        return TrainConfig(
            model=self.model(depth),
            scheme=as_printed(scheme),
            data=self.data,
            batch_size=self.batch_size,
            epochs=self.epochs,
            rate=rate,
            # The papers' hold_then_halve gives the last of three epochs at most a sixteenth of the rate.
            schedule="linear",
            # A pixel is an eighth of a digit: shifted digits need more epochs than a demo has.
            crop=0,
            device="cpu",
            seed=self.seed,
        )

    def _check_networks(self) -> None:
        """Refuse a depth that no network has and a scheme that no table has before any process is started."""
        from normless.models import blocks_per_stage
        from normless.schemes import parse_scheme

        for depth in self.depths:
            blocks_per_stage(depth, 4, "A Wide-ResNet")
        for scheme in self.schemes:
            parse_scheme(scheme)
