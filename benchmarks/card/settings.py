"""The settings of the benchmark of a CUDA card."""

from __future__ import annotations

from dataclasses import dataclass

from normless_lab.bench._step import StepBench

PARTS = ("step", "peak", "together", "accuracy")
NOISE_UNLESS_CIFAR = "benchmarks.card.runs:photographs_or_noise(train=25600, test=2000)"
MODES = ("eager", "graph", "compiled")


@dataclass(frozen=True)
class CardBench:
    """Measure training on a CUDA card.

    Attributes:
        parts: step, the time of a training step; peak, its memory and its share of the card's peak speed; together,
            simultaneous runs; accuracy, the time to a test accuracy, which needs CIFAR-10.
        modes: how a step is executed: eager; graph, as one CUDA graph; compiled, as a graph of blocks compiled by
            `torch.compile`.
        architectures: depth and width of each network: a CIFAR ResNet if the width is 0, else a Wide-ResNet.
        batch_sizes: images per step.
        schemes: schemes whose steps are measured.
        image_size: height and width of an image in pixels.
        rounds: number of measurements of each variant; the variants alternate.
        replays: number of steps in a measurement.
        limit: seconds after which further networks are not compiled.
        matrix: rows and columns of the bfloat16 matrices whose product has the card's peak speed.
        runs_together: number of simultaneous runs of each network.
        scheme, run_data: scheme and data set of these runs, of one epoch each: CIFAR-10, or noise of the same shape.
        data, data_root: data set of the part accuracy, and its folder.
        epochs, target: number of epochs of that training, and the test accuracy.
        trained: schemes that are trained to this accuracy, with the last network.
        device: the name of a torch device; on the CPU steps are eager.
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
        """Return the networks and schemes whose steps are measured on batches of a size."""
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
        """The networks, as texts for `build_model`."""
        return [
            f"normless:wide_resnet(depth={depth}, width={width})"
            if width
            else f"normless:resnet_cifar(depth={depth})"
            for depth, width in self.architectures
        ]
