"""The rules that the configurations of runs keep, each with the sentence that says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from normless.decay import decays_of
from normless.train.settings import Settings

# A range of numbers, in words and as a test.
Range = tuple[str, Callable[[float], bool]]

AT_LEAST_ONE: Range = ("1 or more", lambda value: value >= 1)
NOT_NEGATIVE: Range = ("0 or more", lambda value: value >= 0)
ABOVE_ZERO: Range = ("above 0", lambda value: value > 0)
SHARE_BELOW_ONE: Range = ("in [0, 1)", lambda value: 0 <= value < 1)


def checked_settings(config: Settings, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """The settings, each in its declared type (a whole number given for a real one becomes real).

    Args:
        config: a frozen dataclass.
        ranges: the allowed range of each of its numbers.

    Raises:
        ValueError: naming the setting, what was expected and what came, or there is no such decay policy.
    """
    hints = get_type_hints(type(config))
    values = {}
    for field in fields(config):
        value = _in_type(field.name, getattr(config, field.name), hints[field.name])
        if value is not None and field.name in ranges:
            words, holds = ranges[field.name]
            if not holds(value):
                raise ValueError(f"Expected {field.name} {words}, got {value}.")
        values[field.name] = value
    decays_of(config.decay_policy, 1.0)
    return values


def _in_type(name: str, value: Any, hint: Any) -> Any:
    """The value in the type declared for its field."""
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"Expected {name} to be one of {', '.join(get_args(hint))}; got {value!r}.")
        return value
    kinds = get_args(hint) or (hint,)
    if value is None and type(None) in kinds:
        return None
    if bool in kinds and isinstance(value, bool):
        return value
    if int in kinds and isinstance(value, int) and not isinstance(value, bool):
        return value
    if float in kinds and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if str in kinds and isinstance(value, str) and value.strip():
        return value
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}
    wanted = " or ".join(words.get(kind, "null") for kind in kinds)
    raise ValueError(f"Expected {name} to be {wanted}, got {value!r}.")


def check_batch_shares(values: Mapping[str, Any]) -> None:
    """See that every process has as much of a batch as the others, and no less than a micro-batch.

    Raises:
        ValueError: it has not; names the settings.
    """
    batch, devices, micro = values["batch_size"], values["devices"], values["micro_batch_size"]
    if batch % devices:
        raise ValueError(f"A batch of batch_size={batch} cannot be shared evenly by devices={devices}.")
    if micro is not None and micro > batch // devices:
        raise ValueError(
            f"Expected micro_batch_size to be at most the {batch // devices} examples of a batch that each "
            f"process has, got {micro}."
        )
