"""The settings of a run's optimizer, as text and as fields."""

from __future__ import annotations

from functools import cache
from typing import Any

from normless.spec import format_call, parse_call

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
