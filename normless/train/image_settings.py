"""The rules that the configuration of an image run keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normless.train.validation import (
    ABOVE_ZERO,
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    SHARE_BELOW_ONE,
    check_batch_shares,
    checked_settings,
)

if TYPE_CHECKING:
    from normless.train.config import TrainConfig

_RANGES = {
    **dict.fromkeys(("batch_size", "micro_batch_size", "ghost_batch_size", "epochs", "devices"), AT_LEAST_ONE),
    **dict.fromkeys(
        (
            *("warmup_epochs", "warm_start_epochs", "max_doublings", "weight_decay", "scalar_rate_scale"),
            *("mixup", "cutout", "crop", "seed"),
        ),
        NOT_NEGATIVE,
    ),
    **dict.fromkeys(("momentum", "label_smoothing", "dropout"), SHARE_BELOW_ONE),
    **dict.fromkeys(("rate", "warm_start_rate", "clip"), ABOVE_ZERO),
}


def checked_image_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings, each in its declared type.

    Raises:
        ValueError: naming the setting, what was expected and what came.
    """
    values = checked_settings(config, _RANGES)
    _check_together(values)
    return values


def _check_together(values: dict[str, Any]) -> None:
    """What several settings must keep among themselves."""
    check_batch_shares(values)
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
    if values["warm_start_epochs"] >= values["epochs"]:
        raise ValueError(
            f"Expected warm_start_epochs below epochs={values['epochs']}, got {values['warm_start_epochs']}: "
            "the warm start is part of the training."
        )
    if values["epochs_until_plateau"] and values["epochs"] < 2:
        raise ValueError(
            "epochs_until_plateau compares the training losses of epochs, so it needs epochs of 2 or more, "
            f"got {values['epochs']}."
        )
