"""The training of networks that classify: loss, metrics and outcome; and that of networks on labelled images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.cli import check_first_layer
from normless.edits import HeadDropout
from normless.models import build_model
from normless.optim import adaptive_gradient_clipping
from normless.residual import ResidualMap
from normless.schemes import Scheme
from normless.spec import format_call, parse_call
from normless_lab.data import Augmentation, Batch, ImageData, default_root, load_data
from normless_lab.train._config import ExamplesConfig, TrainConfig
from normless_lab.train._fabric import Fabric
from normless_lab.train._objective import count_correct, evaluate
from normless_lab.train._optimizers import build
from normless_lab.train._result import EpochRow, RunResult, chance_accuracy, finished_outcome
from normless_lab.train._task import EpochTraining, Task, check_logits

TOP = 5

Config = TypeVar("Config", bound=ExamplesConfig)


class ClassificationTask(Task[Config]):
    """A network that returns logits [B, classes] for inputs [B, …].

    Besides what every task asks of it, `data` has `classes`, `test_labels` and `test_batches`, as `ImageData`.
    """

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy (nats) of the examples; targets int64 [B] or float [B, classes]."""
        return F.cross_entropy(logits, targets, label_smoothing=self.config.label_smoothing)

    def correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        """See `count_correct`."""
        return count_correct(logits, targets)

    @property
    def examples_per_pass(self) -> int:
        """Return the number of examples that occupy a GPU in a pass without gradients."""
        return 1

    def epoch_metrics(
        self, epoch: int, training: EpochTraining, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Return test loss and accuracies, and the training loss with the L2 term."""
        test = self._test_metrics(fabric, network)
        return {"training_loss_with_l2": training.loss_with_l2} | test

    def final_metrics(
        self, rows: Sequence[EpochRow], diverged: bool, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Return test loss and accuracies at the end, and the outcome."""
        if diverged:
            test = self._test_metrics(fabric, network)
        else:
            test = {name: getattr(rows[-1], name) for name in ("test_loss", "test_accuracy", "test_accuracy_top5")}
        labels = self.data.test_labels
        outcome = "diverged" if diverged else finished_outcome(test["test_accuracy"], labels)
        return {"outcome": outcome, "chance_accuracy": chance_accuracy(labels)} | test

    def _test_metrics(self, fabric: Fabric, network: nn.Module) -> dict[str, Any]:
        """Return the metrics on the test set, in passes as large as those of training, on a card larger ones."""
        config, top = self.config, min(TOP, self.data.classes)

        def sums(logits: Tensor, targets: Tensor) -> tuple[Any, ...]:
            losses = F.cross_entropy(logits, targets, reduction="none").double()
            among_top = (logits.topk(top, 1).indices == targets[:, None]).sum()
            return losses.sum(), count_correct(logits, targets), among_top, len(targets)

        share = max(64, config.micro_batch_size or config.batch_size // config.devices)
        if fabric.device.type != "cpu":
            share = max(share, self.examples_per_pass)
        batches = self.data.test_batches(share * config.devices, **self.place(fabric))
        loss, accuracy, top5 = evaluate(fabric, network, batches, sums)
        top5_or_none = top5 if self.data.classes > TOP else None
        return {"test_loss": loss, "test_accuracy": accuracy, "test_accuracy_top5": top5_or_none}


ImageConfig = TypeVar("ImageConfig", bound=TrainConfig)

# Of all images of a pass together.
PIXELS_PER_PASS = 2**20


class ImageTask(ClassificationTask[ImageConfig]):
    """A network on images."""

    RESULT = RunResult

    data: ImageData

    def load_data(self) -> ImageData:
        """Load the data set that the configuration names; the runs of one process share the last two."""
        root = default_root() if self.config.data_root is None else Path(self.config.data_root)
        return _loaded(data_text(self.config), root)

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Return the images [B, C, H, W] of the first training batch, without augmentation."""
        inputs = next(super().train_batches(0, augmentation=Augmentation())).inputs
        return (inputs.to(torch.get_default_dtype()),)

    def original(self) -> nn.Module:
        """Build the network before its conversion, with the classes and the shape of the images."""
        shape: Any = self.data.image_shape
        return build_model(self.config.model, classes=self.data.classes, image_shape=shape)

    def check(self, network: nn.Module, *, saved: bool) -> None:
        """Check the first layer of a network, and that a saved network classifies an image of the data."""
        check_first_layer(network, self.example_inputs()[0], self.config.model, self.config.data)
        if saved:
            data, (inputs,) = self.data, self.example_inputs()
            what = f"an example of {data.name}, of shape {'×'.join(map(str, data.image_shape))}"
            advice = f"Convert one with --classes {data.classes}."
            check_logits(self.config, network, (inputs[:1],), data.classes, what, advice)

    def scheme(self) -> Scheme:
        """Return the scheme that the configuration names, with its dropout."""
        scheme, dropout = super().scheme(), self.config.dropout
        if dropout is None:
            return scheme
        if any(isinstance(edit, HeadDropout) for edit in scheme.edits):
            raise ValueError(
                f"The scheme {scheme.text!r} has a dropout of its own, so dropout={dropout} would be a second; "
                "write the one meant as the scheme's argument, as in zeroinit(dropout=0.6)."
            )
        return scheme.extended(HeadDropout(dropout))

    def build_optimizer(self, network: nn.Module, structure: ResidualMap) -> Optimizer:
        """Build the optimizer that the configuration names; see `normless_lab.train._optimizers.build`."""
        return build(self.config, network, structure)

    @property
    def augmentation(self) -> Augmentation:
        """The data set's default augmentation, with what the configuration sets instead."""
        chosen = {name: getattr(self.config, name) for name in ("crop", "flip", "cutout", "mixup")}
        set_here = {name: value for name, value in chosen.items() if value is not None}
        return replace(self.data.default_augmentation, **set_here)

    def train_batches(self, epoch: int, **place: Any) -> Iterator[Batch]:
        """Return the augmented batches of an epoch, counted from 0, or the parts of one process."""
        return super().train_batches(epoch, augmentation=self.augmentation, **place)

    @property
    def warmup(self) -> int:
        """The steps over which the learning rate first rises linearly."""
        return self.config.warmup_epochs * self.steps_per_epoch

    @property
    def examples_per_pass(self) -> int:
        """Images of a pass without gradients that occupy a card: about a thousand of 32×32 pixels."""
        return max(1, PIXELS_PER_PASS // prod(self.data.image_shape[1:]))

    def clipped_parameters(self, network: nn.Module, structure: ResidualMap) -> tuple[nn.Parameter, ...]:
        """Return all parameters but the classifier's."""
        name = structure.classifier
        classifier = set() if name is None else set(network.get_submodule(name).parameters())
        return tuple(parameter for parameter in network.parameters() if parameter not in classifier)

    def clip(self, parameters: tuple[nn.Parameter, ...]) -> None:
        """Limit the gradients relative to the weights if the configuration says so."""
        if self.config.clip is not None:
            adaptive_gradient_clipping(parameters, self.config.clip)


def data_text(config: Any) -> str:
    """Return the text of a run's data set, with the share of its images that are held out."""
    share, text = getattr(config, "validation", None), str(config.data)
    if share is None:
        return text
    name, options = parse_call(text)
    return format_call(name, options | {"validation": share, "seed": config.seed})


@lru_cache(maxsize=2)
def _loaded(name: str, root: Path) -> ImageData:
    # CIFAR-10 takes seconds to decode, more than an epoch of a small run.
    return load_data(name, root=root)
