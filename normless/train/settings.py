"""What the configurations of all kinds of runs share: checked settings, plain data, and the hash that names a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Literal, Self

# The terms of normless.decay.
DecayPolicy = str
Precision = Literal["32-true", "64-true", "bf16-mixed", "bf16-true"]
Device = Literal["auto", "cpu", "cuda"]

# Where a run is executed does not make it another run: it may be resumed elsewhere.
_PLACE = ("data_root", "device")


class Settings:
    """Base of the frozen dataclasses that say what a run is; each has the settings named here, and others.

    Attributes:
        COMMAND: the command that carries out such a run.
        epochs: passes over the training set.
        rate: learning rate, before the schedule's and the groups' multipliers.
        weight_decay: L2 coefficient λ of the groups that decay.
        decay_policy: which these are, by the rules of normless.decay.
        scalar_rate_scale: rate of scalar multipliers and biases, relative to that of the weights.
        precision: numbers the network computes in, by the names of Lightning Fabric.
        seed: of all that is random in the run.
        device: the kind of processor; auto is cuda where there is one.
    """

    COMMAND: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    epochs: int
    rate: float
    weight_decay: float
    decay_policy: DecayPolicy
    scalar_rate_scale: float
    precision: Precision
    seed: int
    device: Device

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain data, ready for YAML and JSON."""
        # Not asdict, which copies values that are plain already: a sweep asks thousands of configurations.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The configuration with these fields, the others at their defaults.

        Raises:
            ValueError: a key is no field, or a value is out of its range.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(f"A training run has no setting {', '.join(unknown)}; it has {', '.join(known)}.")
        return cls(**values)

    def identity(self) -> dict[str, Any]:
        """The fields that decide what run it is: all but where its data lies and the kind of processor."""
        return {name: value for name, value in self.to_dict().items() if name not in _PLACE}

    @property
    def hash(self) -> str:
        """SHA-256, in hexadecimal, of the identity as JSON with sorted keys and without spaces."""
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


class ClassificationSettings(Settings):
    """Base of the configurations of runs that learn to tell classes.

    Attributes:
        batch_size: examples per optimizer step, of all processes together.
        micro_batch_size: examples per forward pass of a process; the whole batch if None.
        label_smoothing: share of each training target spread evenly over all classes.
        devices: number of processes.
    """

    batch_size: int
    micro_batch_size: int | None
    label_smoothing: float
    devices: int


class AdamSettings(Settings):
    """Base of the configurations of runs by Adam.

    Attributes:
        beta1: share of the mean gradient that Adam keeps.
        beta2: share of the mean squared gradient that Adam keeps.
        epsilon: what Adam adds to the root it divides by.
        decoupled_decay: weights decay apart from the gradient, as AdamW has it.
    """

    beta1: float
    beta2: float
    epsilon: float
    decoupled_decay: bool
