"""The folder of a saved network: its weights and its recipe, which several processes may write and read at once."""

from __future__ import annotations

import stat
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from time import time
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from normless.errors import RecipeError
from normless.saving._durable import alone_in, digest_of, replaced
from normless.saving._recipe import Recipe, read_recipe
from normless.saving._state import further_buffers
from normless.spec import RECIPE_FILE

WEIGHTS_FILE = "model.safetensors"
# New weights until the recipe names them; such files are left if the process is killed.
_NEW_WEIGHTS = "model.{}.safetensors"
# Seconds after which a partial file that nobody has written to is one that a killed process left.
_ABANDONED = 3600


def seal(path: str | Path) -> Path:
    """Make the recipe in a folder, which a person has edited, one that `load` accepts; return its path.

    Raises:
        RecipeError: there is no recipe, it cannot be read, or its weights are not those beside it.
    """
    folder = Path(path)
    while True:
        before = _version(folder)
        recipe, intact, _ = read(folder, edited=True)
        if intact is None:
            raise RecipeError(
                f"The weights {folder / WEIGHTS_FILE} are not those that the recipe names: nothing is sealed."
            )
        with alone_in(folder):
            # Another process may have saved a network meanwhile.
            if before == _version(folder):
                with replaced(folder / RECIPE_FILE, token_hex(8)) as part:
                    part.write_text(recipe.written(folder), encoding="utf-8")
                return folder / RECIPE_FILE


def written(net: nn.Module, recipe: Recipe, folder: Path) -> Path:
    """Replace the network in a folder at the instant at which its recipe is replaced; return the path of its weights.

    The recipe names its weights by their digest, so that both the former and the new weights are there meanwhile.
    Processes that save to one folder write weights at once, and then rename in turn: the last determines the network.
    """
    token = token_hex(8)
    new, final = folder / _NEW_WEIGHTS.format(token), folder / WEIGHTS_FILE
    with ExitStack() as turn:
        with replaced(new) as part:
            _write_tensors(net, recipe.state.buffers, part)
            recipe = replace(recipe, digest=digest_of(part))
            alone = turn.enter_context(alone_in(folder))
        with replaced(folder / RECIPE_FILE, token) as part:
            part.write_text(recipe.written(folder), encoding="utf-8")
        if alone:
            new.replace(final)
        weights = final if alone else new
        _remove_left(folder, weights, alone=alone)
    return weights


def _remove_left(folder: Path, weights: Path, *, alone: bool) -> None:
    """Remove what killed processes left, except files that another process may be writing or about to name."""
    for left in (*folder.glob(f"{_NEW_WEIGHTS.format('*')}*"), *folder.glob(f"{RECIPE_FILE}.*.part")):
        with suppress(FileNotFoundError):
            is_old = time() - left.stat().st_mtime > _ABANDONED
            if left != weights and (is_old or (alone and left.suffix != ".part")):
                left.unlink()


def read(folder: Path, *, edited: bool) -> tuple[Recipe, Path | None, dict[str, Tensor]]:
    """Return the recipe, the intact weights or None, and the tensors of one network, also while others are saved."""
    before, recipe = _version(folder), read_recipe(folder, edited=edited)
    with suppress(RecipeError):
        intact, stored = _weights_of(recipe, folder)
        if intact is not None and before == _version(folder):
            return recipe, intact, stored
    # The folder is damaged, or another process is renaming its files.
    while True:
        before = _version(folder)
        with alone_in(folder) as alone:
            recipe = read_recipe(folder, edited=edited)
            intact, stored = _weights_of(recipe, folder)
        if alone or before == _version(folder):
            return recipe, intact, stored


def _weights_of(recipe: Recipe, folder: Path) -> tuple[Path | None, dict[str, Tensor]]:
    """Return the path of the intact weights or None, and the tensors in them or in other weights."""
    intact = _intact_weights(folder, recipe.digest)
    return intact, _stored(intact or folder / WEIGHTS_FILE)


def _version(folder: Path) -> tuple[int, int] | None:
    """Return what differs after every save to a folder."""
    with suppress(OSError):
        found = (folder / RECIPE_FILE).stat()
        return found.st_ino, found.st_mtime_ns
    return None


def _intact_weights(folder: Path, digest: str) -> Path | None:
    """Return the weights with a digest, which have another name if `save` was interrupted; None if there are none."""
    for file in (folder / WEIGHTS_FILE, *folder.glob(_NEW_WEIGHTS.format("*"))):
        # Another process may remove or rename it meanwhile.
        with suppress(FileNotFoundError):
            if file.is_file() and digest_of(file) == digest:
                return file
    return None


def _write_tensors(net: nn.Module, buffers: list[str], path: Path) -> None:
    """Write the tensors of a network, those with several names once, with the permissions of a new file."""
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    further = further_buffers(net)
    tensors: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, value in (net.state_dict() | {name: further[name] for name in buffers}).items():
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype) if value.numel() else (name,)
        if first.setdefault(key, name) != name:
            names[name] = first[key]
        else:
            tensors[name] = value.detach().cpu().contiguous().clone() if _is_part(value) else value.contiguous()
    save_file(tensors, str(path), {"format": "pt"} | names)
    path.chmod(mode)


def _is_part(value: Tensor) -> bool:
    """Whether a tensor is a part of a larger block of memory, which other tensors may share."""
    return value.untyped_storage().nbytes() != value.nbytes


def _stored(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a file, tied tensors under each of their names."""
    try:
        with safe_open(str(path), framework="pt") as file:
            stored: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return stored | {alias: stored[kept] for alias, kept in (file.metadata() or {}).items() if kept in stored}
    except (OSError, SafetensorError, RuntimeError) as error:  # the last by torch, which opens the file again
        raise RecipeError(f"The weights {path} cannot be read: {error}.") from error
