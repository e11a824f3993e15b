"""The rules that the configuration of a translation run keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normless.train.validation import ABOVE_ZERO, AT_LEAST_ONE, NOT_NEGATIVE, SHARE_BELOW_ONE, checked_settings

if TYPE_CHECKING:
    from normless.train.translation.config import TranslationConfig

_RANGES = {
    **dict.fromkeys(
        ("vocabulary", "longest", "batch_tokens", "micro_batch_tokens", "epochs", "bleu_every", "beam_width"),
        AT_LEAST_ONE,
    ),
    **dict.fromkeys(
        ("warmup_steps", "weight_decay", "scalar_rate_scale", "length_penalty", "longer_by", "seed"), NOT_NEGATIVE
    ),
    **dict.fromkeys(("label_smoothing", "beta1", "beta2"), SHARE_BELOW_ONE),
    **dict.fromkeys(("rate", "epsilon", "clip"), ABOVE_ZERO),
}


def checked_translation_settings(config: TranslationConfig) -> dict[str, Any]:
    """The settings, each in its declared type.

    Raises:
        ValueError: naming the setting, what was expected and what came.
    """
    values = checked_settings(config, _RANGES)
    if values["source"] is not None and values["source"] == values["target"]:
        raise ValueError(
            f"Expected two languages, one to translate to the other; source and target are both {values['source']!r}."
        )
    if values["longest"] is not None and values["longest"] > values["batch_tokens"]:
        raise ValueError(
            f"A sentence of longest={values['longest']} tokens is no part of a batch of "
            f"batch_tokens={values['batch_tokens']}; allow larger batches or shorter sentences."
        )
    micro = values["micro_batch_tokens"]
    if micro is not None and micro > values["batch_tokens"]:
        raise ValueError(
            f"Expected micro_batch_tokens to be at most the batch_tokens={values['batch_tokens']} of a batch, "
            f"got {micro}."
        )
    return values
