"""The recipe of a saved network, as JSON: all that is needed besides its weights to build it again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normless.errors import RecipeError

RECIPE_FILE = "recipe.json"
FORMAT = 1
ZOOS = ("torchvision", "timm", "transformers")
_TENSOR = {"shape", "dtype"}


@dataclass(frozen=True)
class Recipe:
    """How a converted network came about.

    Attributes:
        model: text that names the network before its conversion, or None where none does.
        scheme: text of the scheme it was converted by.
        inputs: example inputs, described by `described`; None for those that `model` makes itself.
        training: the mode of the network under "", and of every module whose mode is not that of its parent.
        versions: of normless, torch and the library that `model` names.
    """

    model: str | None
    scheme: str
    inputs: Any
    training: dict[str, bool]
    versions: dict[str, str]

    def write(self, folder: Path) -> None:
        """Write it into a folder."""
        text = json.dumps({"format": FORMAT} | asdict(self), indent=2, ensure_ascii=False, allow_nan=False)
        (folder / RECIPE_FILE).write_text(text + "\n", encoding="utf-8")


def read_recipe(folder: Path) -> Recipe:
    """The recipe in a folder; RecipeError where there is none, or none that this version reads."""
    path = folder / RECIPE_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecipeError(f"There is no saved network in {folder}: it has no {RECIPE_FILE}.") from error
    except ValueError as error:
        raise RecipeError(f"{path} is not the JSON text that normless writes: {error}.") from error
    kinds = {"model": str | None, "scheme": str, "inputs": object, "training": dict, "versions": dict}
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise RecipeError(f"{path} is no recipe of a network: it states no format.")
    if values.pop("format") > FORMAT:
        raise RecipeError(f"{path} was written by a later normless than this one; update normless to read it.")
    wrong = sorted(kinds.keys() ^ values.keys())
    wrong = wrong or [name for name, kind in kinds.items() if not isinstance(values[name], kind)]
    if wrong:
        raise RecipeError(f"{path} is no recipe of a network: {', '.join(wrong)} is not as normless writes it.")
    return Recipe(**values)


def versions_with(model: str | None) -> dict[str, str]:
    """The versions of normless and torch, and of the zoo that the text of a model names."""
    from normless import __version__

    found = {"normless": __version__, "torch": str(torch.__version__)}
    source = (model or "").strip().partition(":")[0]
    if source in ZOOS:
        with suppress(PackageNotFoundError):
            found[source] = version(source)
    return found


def described(inputs: Any) -> Any:
    """Example inputs as JSON: a tensor as its shape and dtype, containers and plain values as they are."""
    if isinstance(inputs, Tensor):
        return {"shape": list(inputs.shape), "dtype": str(inputs.dtype).removeprefix("torch.")}
    if isinstance(inputs, (tuple, list)):
        return [described(value) for value in inputs]
    if isinstance(inputs, dict) and all(isinstance(key, str) for key in inputs) and set(inputs) != _TENSOR:
        return {key: described(value) for key, value in inputs.items()}
    if inputs is None or isinstance(inputs, (bool, int, float, str)):
        return inputs
    raise RecipeError(
        f"A recipe holds example inputs that are tensors, numbers, texts, None, and tuples, lists and dictionaries "
        f"of them; it cannot hold a {type(inputs).__name__}."
    )


def example_of(description: Any, parameters: Iterable[Tensor]) -> Any:
    """Example inputs of the shapes that `described` returned, for a network with these parameters; always the same.

    Floating tensors are normal and of the dtype of the first parameter, whole numbers 0, truth values True.
    """
    floating = next((one.dtype for one in parameters if one.is_floating_point()), torch.get_default_dtype())
    return _example(description, floating, torch.Generator().manual_seed(0))


def _example(description: Any, floating: torch.dtype, generator: torch.Generator) -> Any:
    if isinstance(description, list):
        return tuple(_example(value, floating, generator) for value in description)
    if not isinstance(description, dict):
        return description
    if set(description) != _TENSOR:
        return {key: _example(value, floating, generator) for key, value in description.items()}
    dtype = getattr(torch, description["dtype"])
    if dtype.is_floating_point:
        return torch.randn(description["shape"], generator=generator).to(floating)
    return torch.full(description["shape"], dtype == torch.bool, dtype=dtype)
