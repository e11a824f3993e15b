"""Configurations as frozen dataclasses with types and ranges on their fields, and the hash that names a run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Lt
from pydantic import AfterValidator, ConfigDict, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from normless.optim import decays_of


def _known_policy(policy: str) -> str:
    decays_of(policy, 1.0)
    return policy


Text = Annotated[str, StringConstraints(pattern=r"\S")]
PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Lt(1)]
# The terms of a policy of decay.
DecayPolicy = Annotated[str, AfterValidator(_known_policy)]
Precision = Literal["32-true", "64-true", "bf16-mixed", "bf16-true"]
Device = Literal["auto", "cpu", "cuda"]
Recompute = Literal["never", "auto", "always"]
Strategy = Literal["ddp", "fsdp2"]
Graph = Literal["auto", "never"]

# A run may be resumed on a machine with different memory; these settings are not part of its identity.
_PLACE = ("data_root", "device", "recompute", "strategy", "graph")
_TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    type(None): "null",
}


class Settings:
    """Base of the frozen dataclasses that define a run.

    Attributes:
        COMMAND: the name of the kind of run, and of the command that carries it out if there is one.
        ADDED: fields that a later version added, with the value that stands for the behavior before. A field at this
            value does not enter the hash, so that earlier runs keep theirs.

    Args:
        epochs: passes over the training set.
        rate: learning rate, before the multipliers of schedule and groups.
        seed: of initialization, order of examples, augmentation and dropout.

    Raises:
        ValueError: fields have the wrong type, are out of range or contradict each other; one sentence for each.
    """

    COMMAND: ClassVar[str]
    ADDED: ClassVar[Mapping[str, Any]] = {}
    __dataclass_fields__: ClassVar[dict[str, Any]]

    epochs: int
    rate: float
    seed: int

    def __post_init__(self) -> None:
        for name, value in checked_values(type(self), self.to_dict()).items():
            object.__setattr__(self, name, value)
        conflicts = " ".join(self.conflicts())
        if conflicts:
            raise ValueError(conflicts)

    def conflicts(self) -> Iterator[str]:
        """A sentence for each contradiction between fields."""
        yield from ()

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain data, ready for YAML and JSON."""
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
        """The fields that define the run: all but the location of its data, the kind of processor and its memory."""
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
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def checked_values(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all fields of a dataclass in their declared types; integers are converted to floats.

    Ranges are ``Annotated`` metadata of `annotated_types`. Wrong values raise a ValueError with a sentence for each:
    the field, what was expected, what was given.
    """
    try:
        checked: dict[str, Any] = _adapter(kind, strict=True).validate_python(dict(values))
    except ValidationError as error:
        hints = get_type_hints(kind, include_extras=True)
        details = error.errors(include_url=False)
        raise ValueError(" ".join(_sentence(hints[str(detail["loc"][0])], detail) for detail in details)) from None
    # The validator accepts a NumPy float as a float; YAML does not.
    return {name: float(value) if isinstance(value, float) else value for name, value in checked.items()}


def check_fields(instance: Any, error: type[ValueError]) -> None:
    """Convert the fields of a frozen dataclass to their annotated types, by pydantic's conversions.

    Raises:
        error: for the first wrong field, as ``replicates should be greater than or equal to 1, got 0.``
    """
    kind: Any = type(instance)
    try:
        values = _adapter(kind, strict=False).validate_python(vars(instance))
    except ValidationError as failure:
        first = failure.errors()[0]
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "value_error":
            raise error(f"{place}: {first['ctx']['error']}") from failure
        expected = first["msg"].replace("tuple", "list").replace("dictionary", "mapping")
        raise error(re.sub(r"^\w+ should", f"{place} should", expected) + f", got {first['input']!r}.") from failure
    for name, value in values.items():
        object.__setattr__(instance, name, value)


@cache
def _adapter(kind: Any, *, strict: bool) -> TypeAdapter[Any]:
    hints = get_type_hints(kind, include_extras=True)
    make: Any = TypedDict  # called with a name that the type checker does not know
    table = make(kind.__name__, {field.name: hints[field.name] for field in fields(kind)})
    table.__pydantic_config__ = ConfigDict(strict=strict, allow_inf_nan=not strict)
    return TypeAdapter(table)


def _sentence(hint: Any, error: Any) -> str:
    """Return the validator's error about a field as a sentence."""
    name, value, kind = error["loc"][0], error["input"], error["type"]
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind == "literal_error":
        return f"Expected {name} to be one of {', '.join(get_args(hint))}; got {value!r}."
    if kind.startswith(("greater_than", "less_than")):
        return f"Expected {name} {_range(hint)}, got {value}."
    kinds = [_TYPE_NAMES.get(expected, str(expected)) for expected in (get_args(_plain(hint)) or (_plain(hint),))]
    return f"Expected {name} to be {' or '.join(kinds)}, got {value!r}."


def _plain(hint: Any) -> Any:
    """Return a type without the metadata of its parts."""
    if get_origin(hint) is Annotated:
        return get_args(hint)[0]
    parts = [_plain(part) for part in get_args(hint)]
    return parts[0] | parts[1] if len(parts) == 2 else hint


def _range(hint: Any) -> str:
    """Return the range of a number in words."""
    limits = [limit for part in (hint, *get_args(hint)) for limit in getattr(part, "__metadata__", ())]
    match limits:
        case [Ge(ge=low), Lt(lt=high)]:
            return f"in [{low}, {high})"
        case [Ge(ge=low)]:
            return f"{low} or more"
        case [Gt(gt=low)]:
            return f"above {low}"
    return f"within {', '.join(map(str, limits))}"
