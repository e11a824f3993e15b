"""The reports of runs: a row per epoch and a final result with its outcome, with the metrics of the kind of run."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

from normless import __version__

if TYPE_CHECKING:
    # Reading results must not import torch.
    from torch import Tensor

Outcome = Literal["trained", "chance", "diverged"]

SIGNIFICANCE = 1e-3
# Of fewer test examples, by which even a good network is hardly below the first.
FEW, SIGNIFICANCE_OF_FEW = 100, 0.05

WINDOW = 0.1  # share of the epochs
RELATIVE_FALL = 0.01
ABSOLUTE_FALL = 1e-3  # nats


class Scored:
    """Base of the frozen dataclasses with a score."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def score(self) -> str:
        """The quality of the network in a few words, as the progress bar shows it; by default the test accuracy."""
        accuracy = getattr(self, "test_accuracy", None)
        return "" if accuracy is None else f"test accuracy {accuracy:.2%}"


@dataclass(frozen=True)
class Row(Scored):
    """One finished epoch; the base of the rows of every kind of run.

    Attributes:
        epoch: number of epochs finished with this one, from 1.
        rate: learning rate of the epoch's last step, before the groups' multipliers.
        training_loss: mean of the losses (nats) of the epoch's steps, each before its own step.
        training_accuracy: of the same minibatches.
        seconds: wall time of the epoch's training, without evaluating and saving.
    """

    epoch: int
    rate: float
    training_loss: float
    training_accuracy: float
    seconds: float


SomeRow = TypeVar("SomeRow", bound=Row)


@dataclass(frozen=True)
class EpochRow(Row):
    """One finished epoch of classification; losses are means in nats, accuracies shares of the examples in 0..1.

    Attributes:
        training_accuracy: with mixup against the larger share of the target.
        training_loss_with_l2: training loss plus the L2 term Σ λ/2·‖p‖² at the same weights, the objective of a step;
            the same number without decay or with a decoupled one, as AdamW's.
        test_loss: mean cross entropy on the test set after the epoch, without label smoothing.
        test_accuracy: share of test examples for which the correct class has the largest logit.
        test_accuracy_top5: share for which it is among the five largest; None with five classes or fewer.
    """

    training_loss_with_l2: float
    test_loss: float
    test_accuracy: float
    test_accuracy_top5: float | None


class Report(Scored):
    """Base of the frozen dataclasses that describe how a run ended; each has `epochs`, a tuple of rows.

    Attributes:
        ROW: the type of the rows.
        outcome: trained; chance, see `finished_outcome`; or diverged.
    """

    ROW: ClassVar[type[Row]] = EpochRow

    outcome: Outcome

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON; a number that is not finite becomes its name, `inf` or `nan`."""
        values = asdict(self)
        rows = [_to_json(row) for row in values.pop("epochs")]
        return _to_json(values) | {"epochs": rows}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Invert `to_dict`."""
        row: Any = cls.ROW
        rows = tuple(row(**_from_json(row, entry)) for entry in values["epochs"])
        return cls(**_from_json(cls, values) | {"epochs": rows})


@dataclass(frozen=True, kw_only=True)
class TrainingResult(Report, Generic[SomeRow]):
    """How a run ended.

    Attributes:
        test_loss: mean cross entropy (nats) on the test set of the network at the end; may be infinite or NaN.
        test_accuracy: share of the test set, examples or teacher-forced tokens, classified correctly at the end.
        chance_accuracy: test accuracy of the best constant guess.
        seconds_per_epoch: mean wall time of training an epoch; for a run that diverged in its first epoch, the time
            per step times the steps of an epoch.
        steps: optimizer steps taken, including a step with a diverged loss.
        parameters: number of trained parameters.
        diverged_epoch, diverged_step: epoch and step, both from 1, of the first loss that diverged; else None.
        plateaued: whether the training loss had plateaued; None if the run was too short.
        data: provenance of the data set.
        config_hash: hash of the run's configuration.
        epochs: a row for every finished epoch.
        device: the processor of the training, "cpu" or the name of a GPU; for a resumed run, of its last part.
        arithmetic: number formats of the computation, see `normless_lab.train._execution`.
        graph: on a GPU, "captured" if steps were replayed as a CUDA graph, or the reason why not; else None.
    """

    outcome: Outcome
    test_loss: float
    test_accuracy: float
    chance_accuracy: float
    seconds_per_epoch: float
    steps: int
    parameters: int
    diverged_epoch: int | None
    diverged_step: int | None
    plateaued: bool | None
    data: str
    config_hash: str
    epochs: tuple[SomeRow, ...]
    device: str = "cpu"
    arithmetic: str = "float32"
    graph: str | None = None

    def metrics_in_words(self) -> dict[str, str]:
        """Return the metrics as the command prints them, by title."""
        return {
            "test accuracy": f"{self.test_accuracy:.2%} (the best constant guess: {self.chance_accuracy:.2%})",
            "test loss": f"{self.test_loss:.4f} nats",
        }


@dataclass(frozen=True, kw_only=True)
class RunResult(TrainingResult[EpochRow]):
    """How a run of classification ended, as of images, with the accuracies that `EpochRow` describes."""

    test_accuracy_top5: float | None

    def metrics_in_words(self) -> dict[str, str]:
        """Return the metrics as the command prints them, by title."""
        words = super().metrics_in_words()
        if self.test_accuracy_top5 is not None:
            words["among the top five"] = f"{self.test_accuracy_top5:.2%}"
        if self.epochs:
            last = self.epochs[-1]
            differs = last.training_loss_with_l2 != last.training_loss
            term = f", with the L2 term {last.training_loss_with_l2:.4f}" if differs else ""
            words["training loss"] = f"{last.training_loss:.4f}{term}"
        return words


def _to_json(values: dict[str, Any]) -> dict[str, Any]:
    """Replace infinities and NaN, which JSON does not have, by their names."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _from_json(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    real = {field.name for field in fields(kind) if str(field.type).startswith("float")}
    return {name: float(value) if name in real and value is not None else value for name, value in values.items()}


def chance_accuracy(labels: Tensor) -> float:
    """Return the accuracy of the best constant guess: the share of the most common of the labels [N]."""
    return float(labels.bincount().max()) / len(labels)


def finished_outcome(test_accuracy: float, labels: Tensor) -> Outcome:
    """Return `trained` if the test accuracy is significantly above that of the best constant guess, else `chance`.

    One-sided binomial test: with n test labels, test accuracy k/n, and the most common class a share p of the labels,
    the run is `trained` if P(X ≥ k) < `SIGNIFICANCE` = 10⁻³ for X ~ Binomial(n, p), or 0.05 if n < 100.
    """
    right = round(test_accuracy * len(labels))
    chance = _tail(right, len(labels), chance_accuracy(labels))
    return "trained" if chance < (SIGNIFICANCE if len(labels) >= FEW else SIGNIFICANCE_OF_FEW) else "chance"


def _tail(right: int, count: int, share: float) -> float:
    """Return P(X ≥ right) for X ~ Binomial(count, share); scipy.stats takes seconds to import."""
    if right <= 0 or share >= 1:
        return 1.0
    ways = (math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(right, count + 1))
    logs = (way + k * math.log(share) + (count - k) * math.log1p(-share) for k, way in enumerate(ways, right))
    return min(1.0, math.fsum(map(math.exp, logs)))


def has_plateaued(training_losses: Sequence[float]) -> bool | None:
    """Return whether the training loss no longer falls at the end of a run; None with fewer than two epochs.

    Bjorck et al. (2018, appendix B) do not give a rule. Ours uses windows of w = ⌈epochs / 10⌉ epochs: the mean of
    the last window lies less than 1% of the mean of the window before it, or less than 0.001 nats, below that mean.
    Losses are means of each epoch, without the L2 term, in nats.
    """
    if len(training_losses) < 2:
        return None
    width = math.ceil(WINDOW * len(training_losses))
    last = math.fsum(training_losses[-width:]) / width
    before = math.fsum(training_losses[-2 * width : -width]) / width
    return before - last < max(RELATIVE_FALL * before, ABSOLUTE_FALL)


def versions_of(*packages: str) -> dict[str, str]:
    """Return the versions of normless, Python, torch (with its build) and the installed ones of these packages."""
    import torch  # Its own version, unlike that of its distribution, names the build.

    versions = {"normless": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    for name in packages:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
