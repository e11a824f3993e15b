"""The recipe of a saved network: a JSON text that names its model and its scheme, without absolute paths."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normless.errors import RecipeError
from normless.models._spec import ZOOS
from normless.models._text_classifier import TRANSFORMERS, is_path
from normless.saving._durable import digest_of_values
from normless.spec import RECIPE_FILE, split_source, split_terms

_FORMAT = 4
_TENSOR = {"shape", "dtype"}
# The types of what a recipe has of a kind of modules.
_OF_MODULE = {"class": str, "settings": dict, "absent": list, "paths": list}


@dataclass(frozen=True)
class State:
    """The state of a network besides the tensors in its `state_dict`.

    Attributes:
        modules: the modules grouped by class and settings, each a dictionary with keys class, settings (attributes of
            the instances), absent (names of parameters and buffers that are None) and paths.
        ties: for each tied parameter, its names.
        fixed: the names of the parameters that are not trained.
        buffers: the names of stored buffers that `state_dict` leaves out.
    """

    modules: list[dict[str, Any]] = field(default_factory=list)
    ties: list[list[str]] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Recipe:
    """A description of a saved network: model and scheme as texts, its state, and the versions of the libraries."""

    model: str | None
    scheme: str
    inputs: Any
    """The example inputs as `described` returns them; None if `model` provides them."""
    training: dict[str, bool]
    """The mode of the network under "", and of every module with another mode than its parent."""
    versions: dict[str, str]
    state: State
    digest: str = ""
    """SHA-256 of the file of weights."""
    code: dict[str, str | None] = field(default_factory=dict)
    """SHA-256 of the code that the texts name, by file or module, see `digest_of_code`."""

    def written(self, folder: Path) -> str:
        """The text of the recipe's file in a folder; paths in it are relative to the folder."""

        def relative(path: str) -> str:
            try:
                way = Path(os.path.relpath(Path(path).resolve(), folder.resolve())).as_posix()
            except ValueError as error:
                raise RecipeError(f"{path} and {folder} are on different drives; save beside that file.") from error
            # The separator distinguishes a folder of weights from the name of a model.
            return way if way.startswith("..") else f"./{way}"

        model = None if self.model is None else _with_paths(self.model, relative)
        code = {_with_path(name, relative): digest for name, digest in self.code.items()}
        values = asdict(self) | {"model": model, "scheme": _scheme_with_paths(self.scheme, relative), "code": code}
        values = {"format": _FORMAT} | values
        values["seal"] = digest_of_values(values)
        modules, values["state"]["modules"] = values["state"]["modules"], []
        text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
        # A line for each kind of module: indented, they would take thousands.
        lines = [json.dumps(module, ensure_ascii=False, allow_nan=False) for module in modules]
        listed = ",\n      ".join(lines)
        before, _, after = text.rpartition('"modules": []')
        return f'{before}"modules": [\n      {listed}\n    ]{after}\n'


def read_recipe(folder: Path, *, edited: bool = False) -> Recipe:
    """Read the recipe in a folder.

    Raises:
        RecipeError: there is none, this version cannot read it, or, without `edited`, its seal (the SHA-256 of its
            other values, the digest of the weights among them) is not its own.
    """
    path = folder / RECIPE_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RecipeError(f"There is no saved network in {folder}: it has no {RECIPE_FILE}.") from error
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not the JSON text that normless writes: {error}.") from error
    kinds = {"model": str | None, "scheme": str, "inputs": object, "training": dict, "versions": dict}
    kinds |= {"state": dict, "digest": str, "code": dict}
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise RecipeError(f"{path} is not a recipe of a network: it states no format.")
    if values["format"] != _FORMAT:
        advice = "update normless to read it" if values["format"] > _FORMAT else "save the network again"
        age = "a later" if values["format"] > _FORMAT else "an earlier"
        raise RecipeError(f"{path} was written by {age} version of normless; {advice}.")
    seal = values.pop("seal", None)
    if not edited and seal != digest_of_values(values):
        raise RecipeError(
            f"{path} is not as it was saved: it was edited or damaged. If you edited it, load it with edited=True, "
            f"or run `normless convert --seal {folder}` once; else restore it from a copy."
        )
    del values["format"]
    wrong = sorted(kinds.keys() ^ values.keys())
    wrong = wrong or [name for name, kind in kinds.items() if not isinstance(values[name], kind)]
    wrong = wrong or [name for name, part in values["state"].items() if not _is_part_of_state(name, part)]
    wrong = wrong or ["training"] * any(not isinstance(mode, bool) for mode in values["training"].values())
    wrong = wrong or ["code"] * any(not isinstance(digest, str | None) for digest in values["code"].values())
    if wrong:
        raise RecipeError(f"{path} is not a recipe of a network: {', '.join(wrong)} is not as normless writes it.")

    def resolved(file: str) -> str:
        return os.path.normpath(folder.resolve() / file)

    model = None if values["model"] is None else _with_paths(values["model"], resolved)
    code = {_with_path(name, resolved): digest for name, digest in values["code"].items()}
    values |= {"model": model, "scheme": _scheme_with_paths(values["scheme"], resolved), "code": code}
    return Recipe(**values | {"state": State(**values["state"])})


def _is_part_of_state(name: str, value: Any) -> bool:
    """Whether a value is valid for the attribute of `State` with this name."""
    parts: dict[str, Callable[[Any], bool]] = {
        "modules": _is_kind_of_modules,
        "ties": _are_texts,
        "fixed": lambda item: isinstance(item, str),
        "buffers": lambda item: isinstance(item, str),
    }
    return name in parts and isinstance(value, list) and all(map(parts[name], value))


def _is_kind_of_modules(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != _OF_MODULE.keys():
        return False
    is_typed = all(isinstance(value[name], kind) for name, kind in _OF_MODULE.items())
    return is_typed and _are_texts(value["absent"]) and _are_texts(value["paths"])


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _with_path(source: str, change: Callable[[str], str]) -> str:
    """Return a file, with a changed path, or a module."""
    return change(source) if source.endswith(".py") else source


def _with_paths(text: str, change: Callable[[str], str]) -> str:
    """Return the text of a model or of a term of a scheme with a changed path, if it names a file or folder."""
    source, call = split_source(text)
    if source.endswith(".py:"):
        return f"{change(source[:-1])}:{call}"
    if source == f"{TRANSFORMERS}:" and is_path(call):
        return f"{source}{change(call.strip())}"
    return text.strip()


def _scheme_with_paths(text: str, change: Callable[[str], str]) -> str:
    """Return the text of a scheme with changed paths of the files that its terms name."""
    return " + ".join(_with_paths(term, change) for term in split_terms(text)) if ".py:" in text else text


def versions_with(model: str | None) -> dict[str, str]:
    """Return the versions of normless and torch, and of the library that the text of a model names."""
    from normless._version import __version__

    versions = {"normless": __version__, "torch": str(torch.__version__)}
    source = (model or "").strip().partition(":")[0]
    if source in ZOOS:
        with suppress(PackageNotFoundError):
            versions[source] = version(source)
    return versions


def described(inputs: Any) -> Any:
    """Describe example inputs as JSON: tensors by shape and dtype, containers and plain values unchanged."""
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
    """Create the same example inputs every time from a description by `described`, for a network's parameters.

    Floating-point tensors are normal and have the dtype of the first parameter, integers are 0, booleans are True.
    """
    floating = next(
        (parameter.dtype for parameter in parameters if parameter.is_floating_point()), torch.get_default_dtype()
    )
    generator = torch.Generator().manual_seed(0)

    def example(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(map(example, value))
        if not isinstance(value, dict):
            return value
        if set(value) != _TENSOR:
            return {key: example(item) for key, item in value.items()}
        dtype = getattr(torch, value["dtype"])
        if dtype.is_floating_point:
            return torch.randn(value["shape"], generator=generator).to(floating)
        return torch.full(value["shape"], dtype == torch.bool, dtype=dtype)

    return example(description)
