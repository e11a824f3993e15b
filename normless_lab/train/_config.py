"""The configurations of runs: what all have, what a run on examples has, and a run on images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic

from typing_extensions import TypeVar

from normless.code_names import name_code
from normless_lab.train._result import RunResult, TrainingResult
from normless_lab.train._settings import (
    OWN,
    SGD,
    DecayPolicy,
    Device,
    Fraction,
    Graph,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Precision,
    Recompute,
    Schedule,
    Seed,
    Settings,
    Strategy,
    Text,
    contents_of,
    settle,
)

Result = TypeVar("Result", bound=TrainingResult[Any], covariant=True, default=TrainingResult[Any])


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings, Generic[Result]):
    """What all runs have: a network, its edits, data and optimization.

    A subclass, whose runs end in a `Result`, adds the settings of a kind of run.

    Attributes:
        TASK: the task that trains by such a configuration, a name in `TASKS` or MODULE:NAME.
        BATCH, MICRO_BATCH: the fields that limit the examples, or tokens, of a step and of a forward pass.
        FOLDERS: data sets that read a folder of the user, whose content is part of a run's identity.
        GROUPS: the fields of this class under the titles of a command's help; the others are of the optimization.

    Args:
        model: the network before its conversion.
        scheme: the edits made to it before training.
        data: the data set as text, with its options in brackets.
        data_root: folder that holds or receives the data set; the usual place if null.
        weight_decay: L2 coefficient λ of λ/2·‖p‖².
        decay_policy: which parameters decay: guidelines (weights and the γ of the roles last and other), all,
            weights, or groups and roles joined by +, as in weights+last. An unknown one lists them.
        scalar_rate_scale: learning rate of scalar multipliers and biases, relative to that of the weights.
        precision: number format of the computation, by the names of Lightning Fabric.
        device: the kind of processor; auto is cuda where available.
        schedule: course of the learning rate: hold_then_halve, step, cosine, linear or constant, the first two with
            options as in hold_then_halve(times=9) and step(at=(0.3, 0.6, 0.8), by=5), shares of the training.
        label_smoothing: share of each training target spread evenly over all classes, 0 ≤ share < 1.
        clip: limit of the gradients. Off if null.
        devices: number of processes, started by torchrun, that share every batch.
        recompute: compute activations of L blocks a second time in the backward pass, in about √L segments, rather
            than keep them; auto where those of a batch take more than half of the free memory. Gradients stay.
    """

    TASK: ClassVar[str]
    BATCH: ClassVar[str]
    MICRO_BATCH: ClassVar[str]
    FOLDERS: ClassVar[tuple[str, ...]] = ()
    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "network": ("model", "scheme"),
        "data": ("data", "data_root"),
        "optimization": (),
        "machine": ("precision", "device", "devices", "recompute"),
    }

    model: Text
    scheme: Text
    data: Text
    data_root: Text | None = None
    epochs: PositiveInt
    rate: PositiveFloat
    weight_decay: NonNegativeFloat
    decay_policy: DecayPolicy = "guidelines"
    scalar_rate_scale: NonNegativeFloat = 1.0
    label_smoothing: Fraction = 0.0
    clip: PositiveFloat | None = None
    precision: Precision = "32-true"
    seed: Seed = 0
    device: Device = "auto"
    devices: PositiveInt = 1
    recompute: Recompute = "never"

    def __post_init__(self) -> None:
        super().__post_init__()
        others = (getattr(self, "optimizer", ""),)
        contents = contents_of(self.model, self.scheme, self.data, self.data_root, self.FOLDERS, *others)
        object.__setattr__(self, "_contents", MappingProxyType(contents))
        name_code(self.model, self.scheme, self.data)

    @property
    def contents(self) -> Mapping[str, str]:
        """See `Settings.contents`."""
        contents: Mapping[str, str] = self.__dict__["_contents"]
        return contents

    @property
    def scheme_text(self) -> str:
        """The scheme that is applied."""
        return self.scheme

    @property
    def is_open_ended(self) -> bool:
        """See `Settings.is_open_ended`."""
        return getattr(self, "schedule", None) == "constant"

    @property
    def batch_limit(self) -> int:
        """Examples, or tokens, of an optimizer step of all processes together."""
        return int(getattr(self, self.BATCH))

    @property
    def micro_batch_limit(self) -> int | None:
        """Examples, or tokens, of a forward pass of one process; None for the whole batch."""
        limit: int | None = getattr(self, self.MICRO_BATCH)
        return limit


@dataclass(frozen=True, kw_only=True)
class ExamplesConfig(RunConfig[Result]):
    """A run of which a step has a number of examples.

    Args:
        batch_size: examples per optimizer step, of all processes together.
        micro_batch_size: examples per forward pass of a process; gradients accumulate to the batch. Off if null.
        strategy: what each process keeps: ddp everything, fsdp2 its part of weights, gradients and optimizer state.
    """

    BATCH: ClassVar[str] = "batch_size"
    MICRO_BATCH: ClassVar[str] = "micro_batch_size"
    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {"machine": ("strategy", "micro_batch_size")}

    batch_size: PositiveInt
    micro_batch_size: PositiveInt | None = None
    strategy: Strategy = "ddp"

    def conflicts(self) -> Iterator[str]:
        """See `Settings.conflicts`."""
        share, micro = self.batch_size // self.devices, self.micro_batch_size
        if self.batch_size % self.devices:
            yield f"A batch of batch_size={self.batch_size} cannot be shared evenly by devices={self.devices}."
        elif micro is not None and micro > share:
            yield (
                f"Expected micro_batch_size to be at most the {share} examples of a batch that each process has, "
                f"got {micro}."
            )
        if self.strategy == "fsdp2" and (self.recompute != "never" or getattr(self, "compile", False)):
            yield "strategy='fsdp2' is for networks neither compiled nor recomputed; leave one of the two out."


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ExamplesConfig[RunResult]):
    """One training run of one network on labelled images.

    Args:
        model: the network as text, normless:NAME(key=value, …), torchvision:…, timm:… or FILE.py:FUNCTION, or the
            folder of a network saved by normless convert or of a run, whose weights are trained further.
        scheme: the edits made to it before training, such as skipinit or skipinit(alpha=1); for a saved network the
            one it has, or left out.
        data: the data set as text, such as digits or cifar10.
        validation: share of the images of each class, chosen by the seed, that is the test set; for image_folder with
            a folder for each class and no test set. Off if null.
        ghost_batch_size: examples that share batch-norm statistics; needs scheme batch_norm. Off if null.
        optimizer: the optimizer as text, a class of torch.optim with its arguments, as in
            AdamW(lr=1e-3, weight_decay=0.05), or FILE.py:NAME. Its lr, weight_decay, momentum and nesterov are the
            settings rate, weight_decay, momentum and nesterov, by whichever of the two they are given.
        rate: learning rate, before the multipliers of schedule and groups. The default of the optimizer's class if
            null, for SGD 0.1.
        momentum: of SGD, μ of m ← μ·m + g, the sum of gradients by which a step of rate·m moves the weights,
            0 ≤ μ < 1; of another optimizer, what it calls momentum. The default of the class if null, for SGD 0.9.
        nesterov: a step moves the weights by rate·(g + μ·m), Nesterov's momentum. The default of the class if null,
            for SGD false.
        warmup_epochs: epochs over which the learning rate first rises linearly; they count among the epochs.
        weight_decay: of SGD, L2 coefficient λ of λ/2·‖p‖², in the gradient (not decoupled from the learning rate); of
            another optimizer, what it calls weight_decay. The default of the class if null, for SGD 5e-4.
        clip: adaptive gradient clipping: largest norm of a gradient relative to the norm of its weights, row by row;
            not for the classifier. Off if null.
        dropout: share of features dropped before the classifier. No dropout if null.
        mixup: α of mixup's Beta(α, α), 0 for off; the data set's default if null.
        cutout: side of the square cut out, in pixels, 0 for off; the data set's default if null.
        crop: zero padding before the random crop, in pixels, 0 for off; the data set's default if null.
        flip: mirror half of the images left to right; the data set's default if null.
        compile: compile the residual blocks by torch.compile; those of one structure share their code.
        graph: auto captures a training step as a CUDA graph, on a card and in one process; never leaves it out.
        sync_batch_norm: batch norms have the statistics of the examples of all processes, on CUDA devices alone.
    """

    KIND: ClassVar[str] = "train"
    TASK: ClassVar[str] = "train"
    FOLDERS: ClassVar[tuple[str, ...]] = ("image_folder",)
    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "network": ("dropout",),
        "data": ("validation", "mixup", "cutout", "crop", "flip"),
        "machine": ("compile", "graph", "sync_batch_norm"),
    }
    ADDED: ClassVar[Mapping[str, Any]] = {
        "sync_batch_norm": False,
        "nesterov": False,
        "optimizer": SGD,
        "validation": None,
    }

    model: Text = "normless:wide_resnet(depth=16, width=4)"
    scheme: Text = "batch_norm"
    data: Text = "digits"
    validation: float | None = None
    batch_size: PositiveInt = 128
    ghost_batch_size: PositiveInt | None = None
    epochs: PositiveInt = 200
    optimizer: Text = SGD
    rate: PositiveFloat = OWN
    momentum: Fraction = OWN
    nesterov: bool = OWN
    schedule: Schedule = "hold_then_halve"
    warmup_epochs: NonNegativeInt = 0
    weight_decay: NonNegativeFloat = OWN
    dropout: Fraction | None = None
    mixup: NonNegativeFloat | None = None
    cutout: NonNegativeInt | None = None
    crop: NonNegativeInt | None = None
    flip: bool | None = None
    compile: bool = False
    graph: Graph = "auto"
    sync_batch_norm: bool = False

    def __post_init__(self) -> None:
        settle(self)
        super().__post_init__()

    @property
    def scheme_text(self) -> str:
        """The scheme that is applied: with a ghost batch size, ghost batch norm."""
        return self.scheme if self.ghost_batch_size is None else f"ghost_batch_norm(size={self.ghost_batch_size})"

    def conflicts(self) -> Iterator[str]:
        """See `Settings.conflicts`."""
        yield from super().conflicts()
        if self.ghost_batch_size is not None and self.scheme != "batch_norm":
            yield (
                f"ghost_batch_size={self.ghost_batch_size} turns scheme batch_norm into ghost batch norm, but the "
                f"scheme is {self.scheme!r}; leave one of the two out."
            )
        if self.validation is not None and not 0 < self.validation < 1:
            yield f"Expected validation, a share of the images, above 0 and below 1, got {self.validation:g}."
        if self.nesterov and not self.momentum:
            yield f"Nesterov's momentum needs a momentum above 0, got momentum={self.momentum:g}."
        if self.sync_batch_norm and (self.compile or self.recompute != "never"):
            yield "sync_batch_norm is for networks neither compiled nor recomputed; leave one of the two out."
        if self.compile and self.recompute != "never":
            yield (
                "A compiled network chooses itself what it recomputes; leave out compile or "
                f"recompute={self.recompute!r}."
            )
        if self.warmup_epochs >= self.epochs:
            warmup = f"got {self.warmup_epochs}: the warm-up is part of the training."
            yield f"Expected warmup_epochs below epochs={self.epochs}, {warmup}"
