"""The rules that a training configuration keeps, each with the sentence that says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from normless.training.config import TrainConfig

# The allowed range of each number, in words and as a test.
_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    **dict.fromkeys(
        ("batch_size", "micro_batch_size", "ghost_batch_size", "epochs", "devices"),
        ("1 or more", lambda value: value >= 1),
    ),
    **dict.fromkeys(
        ("warmup_epochs", "max_doublings", "weight_decay", "scalar_rate_scale", "mixup", "cutout", "crop", "seed"),
        ("0 or more", lambda value: value >= 0),
    ),
    **dict.fromkeys(("momentum", "label_smoothing", "dropout"), ("in [0, 1)", lambda value: 0 <= value < 1)),
    **dict.fromkeys(("rate", "clip"), ("above 0", lambda value: value > 0)),
}


def checked_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings, each in its declared type (a whole number given for a real one becomes real).

    Raises:
        ValueError: naming the setting, what was expected and what came.
    """
    from normless.training import config as module

    hints = get_type_hints(type(config), vars(module))
    values = {}
    for field in fields(config):
        value = _in_type(field.name, getattr(config, field.name), hints[field.name])
        if value is not None and field.name in _RANGES:
            words, holds = _RANGES[field.name]
            if not holds(value):
                raise ValueError(f"Expected {field.name} {words}, got {value}.")
        values[field.name] = value
    _check_together(values)
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


def _check_together(values: dict[str, Any]) -> None:
    """What several settings must keep among themselves."""
    batch, devices = values["batch_size"], values["devices"]
    if batch % devices:
        raise ValueError(f"A batch of batch_size={batch} cannot be shared evenly by devices={devices}.")
    micro = values["micro_batch_size"]
    if micro is not None and micro > batch // devices:
        raise ValueError(
            f"Expected micro_batch_size to be at most the {batch // devices} examples of a batch that each "
            f"process has, got {micro}."
        )
    if values["ghost_batch_size"] is not None and values["scheme"] != "batch_norm":
        raise ValueError(
            f"ghost_batch_size={values['ghost_batch_size']} turns scheme batch_norm into ghost batch norm, but the "
            f"scheme is {values['scheme']!r}; leave one of the two out."
        )
    if values["warmup_epochs"] >= values["epochs"]:
        raise ValueError(
            f"Expected warmup_epochs below epochs={values['epochs']}, got {values['warmup_epochs']}: "
            "the warm-up is part of the training."
        )
    if values["epochs_until_plateau"] and values["epochs"] < 2:
        raise ValueError(
            "epochs_until_plateau compares the training losses of epochs, so it needs epochs of 2 or more, "
            f"got {values['epochs']}."
        )
