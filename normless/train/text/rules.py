"""The rules that the configuration of a text run keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normless.train.validation import (
    ABOVE_ZERO,
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    SHARE_BELOW_ONE,
    Range,
    check_batch_shares,
    checked_settings,
)

if TYPE_CHECKING:
    from normless.train.text.config import TextConfig

# A start, a piece of text and an end.
_A_SENTENCE: Range = ("3 or more", lambda value: value >= 3)

_RANGES = {
    **dict.fromkeys(("vocabulary", "batch_size", "micro_batch_size", "epochs", "devices"), AT_LEAST_ONE),
    **dict.fromkeys(("weight_decay", "scalar_rate_scale", "seed"), NOT_NEGATIVE),
    **dict.fromkeys(("warmup", "label_smoothing", "beta1", "beta2"), SHARE_BELOW_ONE),
    **dict.fromkeys(("rate", "epsilon", "clip"), ABOVE_ZERO),
    "longest": _A_SENTENCE,
}


def checked_text_settings(config: TextConfig) -> dict[str, Any]:
    """The settings, each in its declared type.

    Raises:
        ValueError: naming the setting, what was expected and what came.
    """
    values = checked_settings(config, _RANGES)
    check_batch_shares(values)
    return values
