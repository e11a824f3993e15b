"""Networks saved by `normless.save` as the model of a run: their weights, their scheme, their text."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normless.recipe import RECIPE_FILE, read_recipe
from normless.train.config import RunConfig
from normless.train.directory import VOCABULARY_FILE, RunDirectory

if TYPE_CHECKING:
    from torch import nn

    from normless.data import BytePairs


def saved_folder(model: str) -> Path | None:
    """The folder of a network saved by `normless.save` that the text of a model names, or None."""
    folder = Path(model.strip())
    return folder if (folder / RECIPE_FILE).is_file() else None


def applied_scheme(config: RunConfig) -> str:
    """The scheme of the trained network: the configuration's, or the one by which a saved network was converted."""
    folder = saved_folder(config.model)
    return config.scheme_text if folder is None else read_recipe(folder).scheme


def original_model(model: str) -> str:
    """The text of a model; of a saved network that of the network before its conversion."""
    folder = saved_folder(model)
    return model if folder is None else read_recipe(folder).model or model


def stored_vocabulary(config: RunConfig, directory: RunDirectory[Any, Any]) -> BytePairs | None:
    """The byte pairs of a resumed run, or else those in the folder of a saved network; None if there are none."""
    from normless.data import stored_byte_pairs

    folder = saved_folder(config.model)
    beside = None if folder is None else stored_byte_pairs(folder / VOCABULARY_FILE)
    return stored_byte_pairs(directory.vocabulary) or beside


def load_saved(config: RunConfig, folder: Path) -> nn.Module:
    """The saved network with its weights, in torch's default dtype; a run that would edit it is a ValueError."""
    import torch

    from normless.saving import load
    from normless.schemes import parse_scheme

    saved, requested = applied_scheme(config), config.scheme_text
    default = next(field.default for field in fields(config) if field.name == "scheme")
    if requested != default and parse_scheme(requested).edits != parse_scheme(saved).edits:
        raise ValueError(
            f"The network saved in {config.model} was converted by {saved!r} and the run asks for {requested!r}: a "
            "second scheme would edit edits. Leave the scheme out to train it as it is, or name the network it was "
            "before."
        )
    dropout = getattr(config, "dropout", None)
    if dropout is not None:
        raise ValueError(
            f"dropout={dropout} would be an edit of the network saved in {config.model}, which is trained as "
            "it is; leave it out, or convert and save the network by a scheme with that dropout."
        )
    return load(folder).to(torch.get_default_dtype())
