"""What a training run is: every setting that decides its result, as one frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from normless.train.settings import ClassificationSettings, DecayPolicy, Device, Precision

Schedule = Literal["hold_then_halve", "step", "cosine", "linear", "constant"]


@dataclass(frozen=True)
class TrainConfig(ClassificationSettings):
    """One training run of one network on one data set, by stochastic gradient descent with heavy-ball momentum.

    Args:
        model: the network as text, normless:NAME(key=value, …), torchvision:…, timm:… or FILE.py:FUNCTION, or the
            folder of a network that normless convert saved, whose weights are trained further.
        scheme: the edits made to it before training, such as skipinit or skipinit(alpha=1); for a saved network the
            one it has, or left out.
        data: the data set as text, such as digits or cifar10.
        data_root: folder that holds or receives the data set; the usual place if null.
        batch_size: examples per optimizer step, of all processes together.
        micro_batch_size: examples per forward pass of a process; gradients accumulate to the batch. Off if null.
        ghost_batch_size: examples that share batch-norm statistics; needs scheme batch_norm. Off if null.
        epochs: passes over the training set.
        rate: learning rate, before the schedule's and the groups' multipliers.
        momentum: share of the last update kept in the next one, 0 ≤ momentum < 1.
        schedule: course of the rate, a function of the share of training done.
        warmup_epochs: epochs over which the rate first rises linearly; they count among the epochs.
        warm_start_epochs: first epochs that are trained at a rate of their own; they count among the epochs.
        warm_start_rate: learning rate of these, before the groups' multipliers.
        epochs_until_plateau: train anew with twice the epochs until the training loss plateaus.
        max_doublings: how often the epochs may be doubled.
        weight_decay: L2 coefficient λ of λ/2·‖p‖², in the gradient (not decoupled from the rate).
        decay_policy: which parameters decay: guidelines, all, weights, or what + joins, as in weights+last, by the
            rules of normless.decay.
        scalar_rate_scale: rate of scalar multipliers and biases, relative to that of the weights.
        clip: adaptive gradient clipping, the most a gradient's norm may be relative to that of the weights it belongs
            to, row by row; not for the classifier. Off if null.
        label_smoothing: share of each training target spread evenly over all classes, 0 ≤ share < 1.
        dropout: share of features dropped before the classifier. None added if null.
        mixup: α of mixup's Beta(α, α), 0 for off; the data set's default if null.
        cutout: side of the square cut out, in pixels, 0 for off; the data set's default if null.
        crop: zero padding before the random crop, in pixels, 0 for off; the data set's default if null.
        flip: mirror half of the images left to right; the data set's default if null.
        precision: numbers the network computes in, by the names of Lightning Fabric.
        compile: compile the network's training pass by torch.compile.
        seed: of initialization, order of examples, augmentation and dropout.
        device: the kind of processor; auto is cuda where there is one.
        devices: number of processes, started by torchrun, that share every batch.

    Raises:
        ValueError: a setting is out of its range or does not go with another; names both and what came.
    """

    COMMAND: ClassVar[str] = "train"

    model: str = "normless:wide_resnet(depth=16, width=4)"
    scheme: str = "batch_norm"
    data: str = "digits"
    data_root: str | None = None
    batch_size: int = 128
    micro_batch_size: int | None = None
    ghost_batch_size: int | None = None
    epochs: int = 200
    rate: float = 0.1
    momentum: float = 0.9
    schedule: Schedule = "hold_then_halve"
    warmup_epochs: int = 0
    warm_start_epochs: int = 0
    warm_start_rate: float = 1e-4
    epochs_until_plateau: bool = False
    max_doublings: int = 3
    weight_decay: float = 5e-4
    decay_policy: DecayPolicy = "guidelines"
    scalar_rate_scale: float = 1.0
    clip: float | None = None
    label_smoothing: float = 0.0
    dropout: float | None = None
    mixup: float | None = None
    cutout: int | None = None
    crop: int | None = None
    flip: bool | None = None
    precision: Precision = "32-true"
    compile: bool = False
    seed: int = 0
    device: Device = "auto"
    devices: int = 1

    def __post_init__(self) -> None:
        from normless.train.image_settings import checked_image_settings

        for name, value in checked_image_settings(self).items():
            object.__setattr__(self, name, value)

    @property
    def scheme_text(self) -> str:
        """The scheme that is applied: with a ghost batch size, batch norm's ghost form."""
        if self.ghost_batch_size is None:
            return self.scheme
        return f"ghost_batch_norm(size={self.ghost_batch_size})"
