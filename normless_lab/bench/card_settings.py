"""What `normless bench card` measures."""

from __future__ import annotations

from dataclasses import dataclass

from normless_lab.bench.step import StepBench

PARTS = ("step", "peak", "together", "accuracy")
NOISE_UNLESS_CIFAR = "normless_lab.bench.card_runs:photographs_or_noise(train=25600, test=2000)"
MODES = ("eager", "graph", "compiled")


@dataclass(frozen=True)
class CardBench:
    """Which parts to measure of which networks on a CUDA card.

    Parts: step, the time of a training step; peak, the memory that it takes and its share of the card's peak of
    arithmetic; together, runs at once; accuracy, the time to a test accuracy. Modes of a step: eager, operator by
    operator; graph, a CUDA graph; compiled, a graph of blocks that `torch.compile` compiled.

    Attributes:
        architectures: depth and width of each network; with a width of 0 a CIFAR ResNet, else a Wide-ResNet.
        replays: steps of which a time is the mean.
        limit: seconds after which no further network is compiled.
        matrix: rows and columns of the product of bfloat16 matrices whose speed is the card's peak.
        runs_together: the number of runs at once, for each network.
        scheme, run_data: of these runs, of an epoch each; CIFAR-10 if it is there, else noise of its shape.
        data, data_root: data set of the training to `target`, a test accuracy, and its folder; epochs: its length.
        trained: the schemes that are trained to it, on the last of the networks.
        device: as torch names it; on the CPU steps are eager.
    """

    parts: tuple[str, ...] = ("step", "peak", "together")
    modes: tuple[str, ...] = MODES
    architectures: tuple[tuple[int, int], ...] = ((110, 0), (16, 4))
    batch_sizes: tuple[int, ...] = (128, 1024)
    schemes: tuple[str, ...] = StepBench.schemes
    image_size: int = 32
    rounds: int = 5
    replays: int = 5
    limit: int = 60
    matrix: int = 8192
    runs_together: tuple[int, ...] = (8, 12)
    scheme: str = "skipinit"
    run_data: str = NOISE_UNLESS_CIFAR
    data: str = "cifar10"
    data_root: str | None = None
    epochs: int = 30
    target: float = 0.94
    trained: tuple[str, ...] = ("batch_norm", "fixup")
    device: str = "cuda"

    def __post_init__(self) -> None:
        for name, values, known in (("parts", self.parts, PARTS), ("modes", self.modes, MODES)):
            if unknown := [value for value in values if value not in known]:
                raise ValueError(f"Expected {name} of {', '.join(known)}, got {', '.join(map(repr, unknown))}.")

    def step_benches(self, batch_size: int) -> list[StepBench]:
        """The networks and schemes whose steps are measured on batches of a size."""
        return [
            StepBench(
                depth,
                batch_size,
                self.image_size,
                self.rounds,
                width,
                device=self.device,
                schemes=tuple(self.schemes),
            )
            for depth, width in self.architectures
        ]

    @property
    def models(self) -> list[str]:
        """The networks as text."""
        return [
            f"normless:wide_resnet(depth={depth}, width={width})"
            if width
            else f"normless:resnet_cifar(depth={depth})"
            for depth, width in self.architectures
        ]
