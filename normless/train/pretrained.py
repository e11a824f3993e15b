"""Runs that go on from a converted network that was saved: its weights, its scheme, its place in a configuration."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from normless.recipe import RECIPE_FILE, read_recipe
from normless.train.config import TrainConfig

NO_SCHEME = next(field.default for field in fields(TrainConfig) if field.name == "scheme")


def is_saved(model: str) -> bool:
    """Whether the text of a model is the folder of a network that `normless.save` wrote."""
    return (Path(model.strip()) / RECIPE_FILE).is_file()


def applied_scheme(config: TrainConfig) -> str:
    """The scheme of the network that is trained: the configuration's, or the one a saved network was converted by."""
    return read_recipe(Path(config.model.strip())).scheme if is_saved(config.model) else config.scheme_text


def check_saved(config: TrainConfig) -> None:
    """See that a configuration which names a saved network asks for no other edits than it has.

    Raises:
        ValueError: its scheme is neither the default nor that of the saved network, or it adds a dropout.
    """
    from normless.schemes import parse_scheme

    saved = applied_scheme(config)
    asked = config.scheme_text
    if asked != NO_SCHEME and parse_scheme(asked).edits != parse_scheme(saved).edits:
        raise ValueError(
            f"The network saved in {config.model} was converted by {saved!r} and the run asks for {asked!r}: a "
            "second scheme would edit edits. Leave the scheme out to train it as it is, or name the network it was "
            "before."
        )
    if config.dropout is not None:
        raise ValueError(
            f"dropout={config.dropout} would be an edit of the network saved in {config.model}, which is trained as "
            "it is; leave it out, or convert and save the network by a scheme with that dropout."
        )
