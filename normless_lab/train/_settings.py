"""Configurations as frozen dataclasses: types and ranges, optimizers, files that they name, the hash."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_type_hints

from annotated_types import Ge, Gt, Lt
from pydantic import AfterValidator, ConfigDict, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from normless.optim import decays_of
from normless.saving import modules_of
from normless.spec import (
    RUN_FILE,
    format_call,
    holds_network,
    is_run,
    is_saved,
    parse_call,
    split_source,
    split_terms,
)
from normless_lab.train._schedules import schedule_of


def _known_policy(policy: str) -> str:
    decays_of(policy, 1.0)
    return policy


def _known_schedule(text: str) -> str:
    schedule_of(text)
    return text


Text = Annotated[str, StringConstraints(pattern=r"\S")]
PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
Seed = Annotated[int, Ge(0), Lt(2**63)]
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


SGD = "SGD"
"""The default."""
OWN: Any = None
"""The default of a setting that the optimizer's class decides; `settle` replaces it."""

FIELDS = {"rate": "lr", "weight_decay": "weight_decay", "momentum": "momentum", "nesterov": "nesterov"}
"""Fields of a configuration and the arguments of optimizers that they are."""

_OF_SGD = {"lr": 0.1, "weight_decay": 5e-4, "momentum": 0.9, "nesterov": False}
_UNFIT = {
    "LBFGS": "it computes the loss several times in a step",
    "SparseAdam": "it takes sparse gradients alone",
}
# Values of the fields that an optimizer has no such argument for.
_WITHOUT = {"rate": 1.0, "weight_decay": 0.0, "momentum": 0.0, "nesterov": False}


def settle(config: Any) -> None:
    """Give the fields of an optimizer their values: those of its text, else those set, else the class's defaults.

    The text is left with the other arguments, sorted by name, without those at their default; so that texts of one
    optimizer are one configuration. Of SGD the defaults are a rate of 0.1, a momentum of 0.9 and a decay of 5e-4.

    Raises:
        ValueError: there is no such optimizer, it does not take these arguments, or a field contradicts the text.
    """
    text = config.optimizer if isinstance(config.optimizer, str) and config.optimizer.strip() else SGD
    name, options, defaults = _parsed(text)
    options = dict(options)
    for field, argument in FIELDS.items():
        given = getattr(config, field)
        stated = options.pop(argument, None)
        if argument not in defaults:
            value: Any = _WITHOUT[field]
            if given not in (None, value):
                raise ValueError(f"The optimizer {name} has no {argument}; leave {field}={given} out.")
        else:
            if None not in (given, stated) and given != stated:
                raise ValueError(
                    f"The optimizer is {config.optimizer!r}, and the setting {field} is {given!r}: leave one of the "
                    "two out."
                )
            value = next((value for value in (stated, given) if value is not None), defaults[argument])
        object.__setattr__(config, field, value)
    if isinstance(config.optimizer, str) and config.optimizer.strip():
        rest = {key: options[key] for key in sorted(options) if options[key] != defaults.get(key)}
        object.__setattr__(config, "optimizer", format_call(name, rest))


def _parsed(text: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return name, arguments and defaults of the optimizer of a text."""
    if text == SGD:
        return SGD, {}, _OF_SGD  # without torch, which takes a second to import
    return _defined.__wrapped__(text) if ":" in text else _defined(text)


@cache
def _defined(text: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    from normless.optim import defaults_of, parse_optimizer

    name = parse_call(text)[0]
    if name in _UNFIT:
        raise ValueError(f"{name} is not for this training, as {_UNFIT[name]}; choose an optimizer such as AdamW.")
    kind, options = parse_optimizer(text, given=("lr",))
    return name, options, dict(defaults_of(kind)) | (_OF_SGD if name == SGD else {})


# In larger folders only the names and lengths of files count.
MOST_BYTES = 2**28


def contents_of(
    model: str, scheme: str, data: str, data_root: str | None, folders: Collection[str], *others: str
) -> dict[str, str]:
    """Digests of the `FILE.py`, saved networks, checkpoints and folders of data in these texts, as far as they exist.

    `folders` are the data sets that read a folder of the user, which is `data_root`; `others` are further texts.
    A `FILE.py` counts with what it imports of its own folder; downloaded data sets have none.
    """
    named = {str(path): path for text in (model, scheme, data, *others) for path in _paths(text)}
    if split_source(data)[1].partition("(")[0].strip() in folders and not split_source(data)[0]:
        from normless_lab.data import default_root

        named[data] = default_root() if data_root is None else Path(data_root).expanduser()
    # A sweep makes thousands of configurations: a folder of data is looked through once a second at most.
    second = int(time.monotonic())
    return {
        text: _digest(path, _stamp_within(second, path) if text == data else _stamp(path))
        for text, path in named.items()
        if os.path.exists(path)  # noqa: PTH110 - a text too long for a path is none
    }


def _paths(text: str) -> Iterator[Path]:
    """Return the files or folders in the text of a model, scheme or data set; a scheme may name several."""
    for term in split_terms(text):
        source = split_source(term)[0]
        if source.endswith(".py:"):
            yield Path(source[:-1])
    whole = text.strip()
    if whole.startswith("transformers:"):
        whole = whole.removeprefix("transformers:").strip()
        if "/" in whole or whole.endswith(".json"):
            yield Path(whole)
    elif holds_network(whole):
        yield Path(whole)


def _files(path: Path) -> list[Path]:
    """Return a file, with its modules if it is code; for a folder all its files, or those of a saved network."""
    if path.is_file():
        return modules_of(path) if path.suffix == ".py" else [path]
    if is_saved(path):
        return sorted(file for file in path.iterdir() if file.suffix in (".json", ".safetensors"))
    if is_run(path):
        return [file for file in (path / RUN_FILE, path / "checkpoint.pt") if file.is_file()]
    return sorted(file for file in path.rglob("*") if file.is_file())


@lru_cache(maxsize=8)
def _stamp_within(_second: int, path: Path) -> tuple[tuple[str, int, int], ...]:
    """`_stamp`, once in a second."""
    return _stamp(path)


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, lengths and times of the files, which tell whether a known digest is current."""
    times = ((file, file.stat()) for file in _files(path))
    return tuple((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in times)


@lru_cache(maxsize=64)
def _digest(path: Path, stamp: tuple[tuple[str, int, int], ...]) -> str:
    """Return the SHA-256 of the names, lengths and contents of the files, independent of the folder's location."""
    whole, small = hashlib.sha256(), sum(size for _, size, _ in stamp) <= MOST_BYTES or holds_network(path)
    for name, size, _ in stamp:
        folder = path.parent if path.is_file() else path
        own = "" if Path(name) == path else Path(name).relative_to(folder).as_posix()
        whole.update(f"{own} {size}\n".encode())
        if small or path.is_file():
            with Path(name).open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
