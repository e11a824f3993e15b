"""What the demo runs: the grid, the budget, and where its results go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DemoSettings:
    """Wide-ResNets of every depth with every scheme, trained on one data set at one rate for a few epochs.

    Args:
        depths: depths in layers, each 6b + 4.
        schemes: names of schemes.
        epochs: passes over the data set per run.
        rate: the one learning rate.
        batch_size: examples per step.
        seed: of initialization, order of examples and augmentation.
        out: the folder that receives figures, page and the curves of the runs.
        workers: number of processes; as many as there are cores if None.
        width: width factor of the networks.
        data: name of the data set.

    Raises:
        ValueError: naming the setting, what was expected and what came.
    """

    depths: tuple[int, ...] = (16, 100, 400)
    schemes: tuple[str, ...] = ("none", "sqrt2", "skipinit", "fixup", "batch_norm")
    epochs: int = 3
    rate: float = 0.05
    batch_size: int = 32
    seed: int = 0
    out: Path = Path("normless-demo")
    workers: int | None = None
    width: int = 1
    data: str = "digits"

    def __post_init__(self) -> None:
        for name in ("epochs", "rate", "batch_size", "width", "workers"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"Expected {name} above 0, got {value}.")
        for name in ("depths", "schemes"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"Expected {name} to be one or more different values, got {list(values)}.")
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f"Expected a folder to write to, but {self.out} is a file; name another with --out.")
        self._check_networks()

    def _check_networks(self) -> None:
        """Refuse a depth that no network has and a scheme that no table has before any process is started."""
        from normless.models.layers import blocks_per_stage
        from normless.schemes import parse_scheme

        for depth in self.depths:
            blocks_per_stage(depth, 4, "A Wide-ResNet")
        for scheme in self.schemes:
            parse_scheme(scheme)
