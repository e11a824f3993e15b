"""The differences between the kinds of runs: data, network, loss and metrics."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normless import schemes
from normless.code_names import names_of_data
from normless.conversion import convert
from normless.optim import param_groups
from normless.registry import Registry
from normless.residual import ResidualMap
from normless.saving import load, read_recipe
from normless.schemes import Scheme
from normless.spec import RUN_FILE, holds_network, is_saved
from normless.state import running
from normless_lab.process import read_yaml
from normless_lab.train._config import RunConfig
from normless_lab.train._directory import RunDirectory
from normless_lab.train._fabric import Fabric
from normless_lab.train._result import TrainingResult
from normless_lab.train._schedules import rate_multiplier

Config = TypeVar("Config", bound=RunConfig)

TASKS: Registry[type[Task[Any]]] = Registry("task", package="normless_lab")
"""The tasks by the names in their configurations; other distributions add theirs by entry points."""

# Of the first training batch, on which a conversion is checked; passes of a whole batch are slow on the CPU.
CHECKED_EXAMPLES = 8


@dataclass
class EpochTraining:
    """An epoch of training: the losses (nats) of its steps, and the means over them.

    `losses` ends with the first that diverged, at position `diverged` (from 0); the means are then NaN.
    """

    losses: list[float] = field(default_factory=list)
    loss: float = float("nan")
    loss_with_l2: float = float("nan")
    accuracy: float = float("nan")
    lr: float = 0.0
    seconds: float = 0.0
    diverged: int | None = None


class Task(ABC, Generic[Config]):
    """The data of a run, the network to train on it, its loss and its metrics.

    A batch is a tuple of inputs of the network and, last, the targets. `data` has a line of `provenance`,
    `steps_per_epoch(batch)` and `train_batches(batch, seed=, epoch=, device=, rank=, world_size=)`, where batch is
    `RunConfig.batch_limit`.

    Attributes:
        RESULT: the class of its results, which names that of the rows.
        FILES: the names of the files that it adds to the directory of a run.

    Raises:
        ValueError: the configuration names data that does not exist, or that does not fit its other settings.
    """

    RESULT: ClassVar[type[TrainingResult[Any]]]
    FILES: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Config, directory: RunDirectory | None = None) -> None:
        self.config = config
        # Without one the task builds networks and batches.
        self.directory: Any = directory
        self.data: Any = self.load_data()

    @classmethod
    def trainings(cls, config: Config, train: Callable[[Config], Any]) -> Any:
        """Execute a run and return its result: `train` by one configuration, or by several in turn.

        A configuration of several trainings says so in `Settings.is_one_training`.
        """
        return train(config)

    @abstractmethod
    def load_data(self) -> Any:
        """Load the data set that the configuration names."""

    @abstractmethod
    def original(self) -> nn.Module:
        """Build the network before its conversion, fitted to the data."""

    def check(self, network: nn.Module, *, saved: bool) -> None:
        """Raise a ValueError if a network, perhaps a saved one, does not fit the data; see `check_logits`."""

    def scheme(self) -> Scheme:
        """Return the scheme of the conversion."""
        return schemes.scheme(self.config.scheme_text)

    def build_network(self) -> nn.Module:
        """Build the converted network, on the CPU, a pure function of the configuration and its files.

        Seeds the global generator with the configuration's seed.
        """
        torch.manual_seed(self.config.seed)
        folder = saved_folder(self.config.model)
        if folder is not None:
            network = load_saved(self.config, folder)
            self.check(network, saved=True)
            return network
        scheme, network = self.scheme(), self.original()
        self.check(network, saved=False)
        inputs = self.example_inputs()
        first = tuple(tensor[:CHECKED_EXAMPLES] for tensor in inputs)
        return convert(network, scheme, *inputs, check_inputs=first, in_place=True)

    @abstractmethod
    def build_optimizer(self, network: nn.Module, structure: ResidualMap) -> Optimizer:
        """Build the optimizer of a network on its device; `groups_of` gives the groups of the decay policy."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the predictions that is minimized, a scalar."""

    @abstractmethod
    def epoch_metrics(
        self, epoch: int, training: EpochTraining, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Return the fields that rows of this kind have besides the common ones; epochs are counted from 1."""

    @abstractmethod
    def final_metrics(
        self, rows: Sequence[Any], diverged: bool, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Return the fields that results of this kind add to the common ones; a diverged network is tested too."""

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Return the inputs of the network in the first training batch, on the CPU."""
        return tuple(next(self.train_batches(0))[:-1])

    def correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the number of correct predictions, a scalar; NaN where predictions are not right or wrong."""
        return logits.new_full((), math.nan)

    @property
    def warmup(self) -> int:
        """The steps over which the learning rate first rises linearly."""
        return 0

    def save_files(self) -> None:
        """Write `FILES` that the run needs to be resumed; called when it begins."""

    def clipped_parameters(self, network: nn.Module, structure: ResidualMap) -> tuple[nn.Parameter, ...]:
        """Return the parameters with clipped gradients, if the configuration asks for clipping."""
        return tuple(network.parameters())

    def clip(self, parameters: tuple[nn.Parameter, ...]) -> None:
        """Clip the gradients of these parameters if the configuration says so."""
        if self.config.clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self.config.clip)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch."""
        return int(self.data.steps_per_epoch(self.config.batch_limit))

    def place(self, fabric: Fabric) -> dict[str, Any]:
        """Return the arguments that select this process's parts of batches, and their device."""
        return {"device": fabric.device, "rank": fabric.global_rank, "world_size": fabric.world_size}

    def train_batches(self, epoch: int, **place: Any) -> Iterator[Any]:
        """Return the batches of an epoch, from 0, or a process's parts: a function of configuration and epoch."""
        config = self.config
        return iter(self.data.train_batches(config.batch_limit, seed=config.seed, epoch=epoch, **place))

    def micro_batches(self, batch: Any) -> list[Any]:
        """Split a batch into the parts that are passed through the network at once."""
        limit = self.config.micro_batch_limit
        if limit is None:
            return [batch]
        return list(zip(*(torch.split(values, limit) for values in batch), strict=True))

    def count(self, targets: Tensor) -> Any:
        """Return the number of predictions over which `loss` is the mean."""
        return len(targets)

    def lr(self, done: int) -> float:
        """Return the learning rate of the step that follows `done` steps, before the groups' multipliers."""
        config: Any = self.config
        total = config.epochs * self.steps_per_epoch
        return float(config.rate * rate_multiplier(config.schedule, done, total, warmup=self.warmup))


def check_logits(
    config: RunConfig, network: nn.Module, inputs: Sequence[Tensor], classes: int, what: str, advice: str
) -> None:
    """Check that a network runs on inputs with a batch of one and returns logits of so many classes.

    A failure is a ValueError with `what`, the inputs in words, and `advice`.
    """
    try:
        with running(network, training=False):
            logits = network(*inputs)
    except Exception as error:
        raise ValueError(f"{config.model} does not run on {what}: {error}. {advice}") from error
    shape = (1, *inputs[-1].shape[1:], classes) if len(inputs) > 1 else (1, classes)
    if not isinstance(logits, Tensor) or logits.shape != shape:
        actual = "×".join(map(str, logits.shape)) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise ValueError(
            f"Expected {'×'.join(map(str, shape))} logits of {config.model} for {what}, got {actual}. {advice}"
        )


def groups_of(config: RunConfig, network: nn.Module, structure: ResidualMap, **options: Any) -> list[dict[str, Any]]:
    """Return the parameter groups of a network by the configuration's decay policy; options of `param_groups`."""
    return param_groups(
        network,
        lr=config.rate,
        weight_decay=config.weight_decay,
        policy=config.decay_policy,
        scalar_lr_scale=config.scalar_rate_scale,
        residual_map=structure,
        **options,
    )


def saved_folder(model: str) -> Path | None:
    """Return the folder of a saved network, or of a run, that the text of a model names, or None."""
    folder = Path(model.strip())
    return folder if holds_network(folder) else None


def applied_scheme(config: RunConfig) -> str:
    """Return the scheme of the trained network: that of the configuration, or that of the saved network."""
    folder = saved_folder(config.model)
    if folder is None:
        return config.scheme_text
    return read_recipe(folder).scheme if is_saved(folder) else applied_scheme(config_in(folder, type(config)))


def config_in(folder: Path, kind: type[Config]) -> Config:
    """Return the configuration of a run of this kind; a ValueError for another."""
    with names_of_data(folder / RUN_FILE):
        return kind.from_dict(dict(read_yaml(folder / RUN_FILE)))


def load_saved(config: RunConfig, folder: Path) -> nn.Module:
    """Load the network of a folder, in torch's default dtype; a run that would edit it is a ValueError."""
    saved, requested = applied_scheme(config), config.scheme_text
    default = next(field.default for field in fields(config) if field.name == "scheme")
    if requested != default and schemes.scheme(requested).edits != schemes.scheme(saved).edits:
        raise ValueError(
            f"The network saved in {config.model} was converted by {saved!r} and the run asks for {requested!r}: a "
            "second scheme would edit edits. Leave the scheme out to train it as it is, or name the network it was "
            "before."
        )
    dropout = getattr(config, "dropout", None)
    if dropout is not None:
        raise ValueError(
            f"dropout={dropout} would be an edit of the network saved in {config.model}, which is trained as "
            "it is; leave it out, or convert and save the network by a scheme with that dropout."
        )
    return load(folder).to(torch.get_default_dtype())
