"""Configurations as frozen dataclasses with types and ranges on their fields, and the hash that names a run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, get_type_hints

from annotated_types import Ge, Gt, Lt
from pydantic import AfterValidator, ConfigDict, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from normless.optim import decays_of
from normless_lab.train.schedules import schedule_of


def _known_policy(policy: str) -> str:
    decays_of(policy, 1.0)
    return policy


def _known_schedule(text: str) -> str:
    schedule_of(text)
    return text


Text = Annotated[str, StringConstraints(pattern=r"\S")]
PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Lt(1)]
# The terms of a policy of decay.
DecayPolicy = Annotated[str, AfterValidator(_known_policy)]
# A schedule with its options.
Schedule = Annotated[str, AfterValidator(_known_schedule)]
Precision = Literal["32-true", "64-true", "bf16-mixed", "bf16-true"]
Device = Literal["auto", "cpu", "cuda"]
Recompute = Literal["never", "auto", "always"]
Strategy = Literal["ddp", "fsdp2"]
Graph = Literal["auto", "never"]

# A run may be resumed on a machine with different memory; these settings are not part of its identity.
_PLACE = ("data_root", "device", "recompute", "strategy", "graph")


class Settings:
    """Base of the frozen dataclasses that define a run.

    Attributes:
        KIND: the kind of run, see `normless_lab.sweeps.kind_of`.
        ADDED: fields that a later version added, with the value that stands for the behavior before. A field at this
            value does not enter the hash, so that earlier runs keep theirs.

    Args:
        epochs: passes over the training set.
        rate: learning rate, before the multipliers of schedule and groups.
        seed: of initialization, order of examples, augmentation and dropout.

    Raises:
        ValueError: fields have the wrong type, are out of range or contradict each other; one sentence for each.
    """

    KIND: ClassVar[str]
    ADDED: ClassVar[Mapping[str, Any]] = {}
    __dataclass_fields__: ClassVar[dict[str, Any]]

    epochs: int
    rate: float
    seed: int

    def __post_init__(self) -> None:
        check_fields(self, strict=True)
        conflicts = " ".join(self.conflicts())
        if conflicts:
            raise ValueError(conflicts)

    def conflicts(self) -> Iterator[str]:
        """Return a sentence for each contradiction between fields."""
        yield from ()

    def to_dict(self) -> dict[str, Any]:
        """Return every field as plain data, ready for YAML and JSON."""
        # Not asdict, which deep-copies: a sweep serializes thousands of configurations.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration with these fields, else defaults; raise a ValueError for unknown fields."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(f"A training run has no setting {', '.join(unknown)}; it has {', '.join(known)}.")
        return cls(**values)

    @property
    def contents(self) -> Mapping[str, str]:
        """Digests of the user's files that the fields name, as they were when this was made."""
        return {}

    def fields_of_identity(self) -> dict[str, Any]:
        """Return the fields that define the run: all but the location of its data, the processor and its memory."""
        return {
            name: value
            for name, value in self.to_dict().items()
            if name not in _PLACE and (name not in self.ADDED or value != self.ADDED[name])
        }

    def identity(self) -> dict[str, Any]:
        """`fields_of_identity`, and under `contents` the digests of files that they name, if any."""
        return self.fields_of_identity() | ({"contents": dict(self.contents)} if self.contents else {})

    @property
    def is_open_ended(self) -> bool:
        """Whether the rate of a step does not depend on `epochs`, so that a longer run begins as a shorter one."""
        return False

    @property
    def is_one_training(self) -> bool:
        """Whether the run is one training, which a run of more epochs may continue."""
        return True

    @property
    def hash(self) -> str:
        """SHA-256, in hexadecimal, of the identity as JSON with sorted keys and without spaces."""
        return _hash_of(self.identity())

    @property
    def hash_of_fields(self) -> str:
        """The same of `fields_of_identity`, which does not depend on the content of files."""
        return _hash_of(self.fields_of_identity())


def _hash_of(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def check_fields(instance: Any, error: type[ValueError] = ValueError, *, strict: bool = False) -> None:
    """Convert the fields of a frozen dataclass to their annotated types; strict fields only integers to floats.

    Raises:
        error: with a sentence for each wrong field, as ``replicates should be greater than or equal to 1, got 0.``
    """
    kind: Any = type(instance)
    try:
        values = _adapter(kind, strict=strict).validate_python(vars(instance))
    except ValidationError as failure:
        raise error(" ".join(map(_sentence, failure.errors(include_url=False)))) from failure
    for name, value in values.items():
        # The validator accepts a NumPy float as a float; YAML does not.
        object.__setattr__(instance, name, float(value) if isinstance(value, float) else value)


@cache
def _adapter(kind: Any, *, strict: bool) -> TypeAdapter[Any]:
    hints = get_type_hints(kind, include_extras=True)
    make: Any = TypedDict  # called with a name that the type checker does not know
    table = make(kind.__name__, {field.name: hints[field.name] for field in fields(kind)})
    table.__pydantic_config__ = ConfigDict(strict=strict, allow_inf_nan=not strict)
    return TypeAdapter(table)


def _sentence(detail: Any) -> str:
    """Return a finding of the validator as a sentence."""
    place = ".".join(map(str, detail["loc"]))
    if detail["type"] == "value_error":
        return f"{place}: {detail['ctx']['error']}"
    expected = detail["msg"].replace("tuple", "list").replace("dictionary", "mapping")
    return re.sub(r"^\w+ should", f"{place} should", expected) + f", got {detail['input']!r}."
