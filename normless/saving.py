"""A converted network saved as a folder: its weights as safetensors and a JSON recipe; nothing is pickled.

The recipe names the network and the scheme. To load is to build the network, convert it and fill in the weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_model
from torch import Tensor, nn

from normless.arguments import arguments_of, on_device_of
from normless.conversion import convert, scheme_of
from normless.digests import digest_of
from normless.errors import RecipeError
from normless.models.spec import TRANSFORMERS, ZOOS, Inputs, build_model, build_with_inputs, is_path
from normless.schemes import parse_scheme
from normless.spec import RECIPE_FILE, absolute

WEIGHTS_FILE = "model.safetensors"
_FORMAT = 1
_TENSOR = {"shape", "dtype"}


@dataclass(frozen=True)
class Recipe:
    """How a converted network came about: model and scheme as texts, and the versions of the libraries."""

    model: str | None
    scheme: str
    inputs: Any
    """As `described` returns them; None for those that `model` makes itself."""
    training: dict[str, bool]
    """The mode of the network under "", and of every module whose mode is not that of its parent."""
    versions: dict[str, str]
    digest: str | None = None
    """SHA-256 of the file of weights."""


def save(
    net: nn.Module, path: str | Path, model: str | None = None, *, example_inputs: Inputs | None = None
) -> tuple[Path, Path]:
    """Save a converted network to a folder: weights and buffers, and the recipe to `load` it by; returns both paths.

    Tied parameters stay tied; weights are stored in their own dtype. Whether a parameter is trainable is not stored.

    Args:
        net: the network, as `convert` returned it or trained since then.
        path: the folder; made if need be. A network that was saved there is replaced.
        model: text that names the network before its conversion, `torchvision:resnet50` or another that
            `normless inspect` takes; None where none does, and then `load` must be given the network.
        example_inputs: one tensor, a tuple of positional or a dictionary of keyword arguments of its forward; their
            shapes and dtypes are recorded. Those that `model` brings if None.

    Raises:
        RecipeError: the network is not converted, its scheme has no text, something in it or its inputs has no
            place in the files, or `path` is a file.
        ValueError: `model` is no text of a network.
    """
    net = getattr(net, "_orig_mod", net)  # what torch.compile wraps
    recipe = Recipe(
        model=None if model is None else _absolute(model),
        scheme=_scheme_text(net),
        inputs=described(example_inputs),
        training=_modes(net),
        versions=versions_with(model),
    )
    strangers = [name for name, value in net.state_dict().items() if not isinstance(value, Tensor)]
    if strangers:
        raise RecipeError(f"safetensors holds tensors alone, and {strangers[0]} in the network's state is none.")
    folder = Path(path)
    file = next((one for one in (folder, *folder.parents) if one.is_file()), None)
    if file is not None:
        raise RecipeError(f"Expected a folder to save to, but {file} is a file; name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    # A folder with a recipe is complete, whenever the process is killed.
    (folder / RECIPE_FILE).unlink(missing_ok=True)
    save_model(net, str(folder / WEIGHTS_FILE))
    recipe = replace(recipe, digest=digest_of(folder / WEIGHTS_FILE))
    text = json.dumps({"format": _FORMAT} | asdict(recipe), indent=2, ensure_ascii=False, allow_nan=False)
    (folder / RECIPE_FILE).write_text(text + "\n", encoding="utf-8")
    return folder / WEIGHTS_FILE, folder / RECIPE_FILE


def load(
    path: str | Path, model: str | nn.Module | None = None, *, example_inputs: Inputs | None = None
) -> nn.Module:
    """The network that `save` wrote to a folder: on the CPU, in the mode it was saved in.

    A recipe that names a file runs that file's code, as importing it would.

    Args:
        path: the folder.
        model: the network before its conversion, or a text that names it, in place of the one in the recipe; a
            network is left as it is, and its copy on its device is converted and filled.
        example_inputs: in place of those in the recipe; as in `save`.

    Raises:
        RecipeError: the folder holds no saved network, nothing names the network, or the weights do not fit it.
        ValueError, ModuleNotFoundError: the recipe's model or scheme is unknown, or its library is not installed.
    """
    return load_with_inputs(path, model, example_inputs=example_inputs)[0]


def load_with_inputs(
    path: str | Path, model: str | nn.Module | None = None, *, example_inputs: Inputs | None = None
) -> tuple[nn.Module, Inputs | None]:
    """As `load`, and the example inputs by which the network was converted, where there are any."""
    folder = Path(path)
    recipe = read_recipe(folder)
    original = recipe.model if model is None else model
    if original is None:
        raise RecipeError(
            f"The recipe in {folder} names no network that it could be built by; pass the network as it was before "
            "its conversion: nl.load(path, model=…)."
        )
    inputs = example_inputs
    # What the network's first weights draw, and what its conversion draws, is overwritten.
    with torch.random.fork_rng(devices=[]):
        if isinstance(original, str):
            original, own = build_with_inputs(original) if recipe.inputs is None else (build_model(original), None)
            inputs = own if inputs is None else inputs
        if inputs is None and recipe.inputs is not None:
            try:
                inputs = example_of(recipe.inputs, original.parameters())
            except (TypeError, RuntimeError, AttributeError) as error:
                raise RecipeError(f"{folder / RECIPE_FILE} describes no example inputs: {error}.") from error
        positional, keywords = on_device_of(original, *arguments_of(inputs))
        net = convert(original, recipe.scheme, *positional, **keywords)
    _fill(net, folder, recipe)
    unknown = recipe.training.keys() - dict(net.named_modules(remove_duplicate=False)).keys()
    if unknown:
        raise RecipeError(f"{folder / RECIPE_FILE} has modes of modules that the network has not: {min(unknown)}.")
    for name, training in recipe.training.items():
        net.get_submodule(name).train(training)
    return net, inputs


def _scheme_text(net: nn.Module) -> str:
    """The text of the scheme of a network, by which it can be converted again."""
    text = scheme_of(net)
    if text is None:
        raise RecipeError(
            f"This {type(net).__name__} carries no scheme: nl.save is for networks that nl.convert returned. Of a "
            "wrapper (DistributedDataParallel) pass the network inside it."
        )
    try:
        return parse_scheme(text).text
    except ValueError as error:
        what = f"the scheme {text!r} of this {type(net).__name__}"
        raise RecipeError(f"The recipe could not name {what}: {error}") from error


def _absolute(model: str) -> str:
    """The text of a model, with an absolute path where it names a file or folder."""
    source, separator, call = model.strip().partition(":")
    if not separator:
        raise ValueError(f"Expected the text of a model, as torchvision:resnet50, got {model!r}.")
    if source == TRANSFORMERS:
        return f"{source}:{Path(call.strip()).resolve()}" if is_path(call) else model.strip()
    return absolute(model)


def _modes(net: nn.Module) -> dict[str, bool]:
    """The mode of the network, and of every module in it that is in another than its parent."""
    modes = {path: module.training for path, module in net.named_modules(remove_duplicate=False)}
    return {path: mode for path, mode in modes.items() if not path or mode != modes[path.rpartition(".")[0]]}


def _fill(net: nn.Module, folder: Path, recipe: Recipe) -> None:
    """Give the network the saved weights, each in the dtype it was saved in."""
    stored = _stored(folder / WEIGHTS_FILE)
    state = net.state_dict(keep_vars=True)
    differing = {
        "are not in the file": [name for name in state if name not in stored],
        "are not in the network": [name for name in stored if name not in state],
        "differ in shape": [name for name in state if name in stored and state[name].shape != stored[name].shape],
    }
    problems = [f"{len(names)} {what}, the first {names[0]}" for what, names in differing.items() if names]
    if problems:
        now, then = versions_with(recipe.model), recipe.versions
        changed = [f"{name} {old} (now {now.get(name)})" for name, old in then.items() if now.get(name) != old]
        raise RecipeError(
            f"The weights in {folder} do not fit {recipe.model or 'the network given'} converted by {recipe.scheme}: "
            f"{'; '.join(problems)}. " + (f"It was saved with {', '.join(changed)}." if changed else "Is it another?")
        )
    if recipe.digest not in (None, digest_of(folder / WEIGHTS_FILE)):
        raise RecipeError(
            f"The weights {folder / WEIGHTS_FILE} are damaged: they are not those that were saved there."
        )
    for name, value in stored.items():
        state[name].data = state[name].data.to(value.dtype)
    net.load_state_dict(stored)


def _stored(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file, those that were tied under each of their names."""
    try:
        with safe_open(str(path), framework="pt") as file:
            stored: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return stored | {other: stored[kept] for other, kept in (file.metadata() or {}).items() if kept in stored}
    except (OSError, SafetensorError) as error:
        raise RecipeError(f"The weights {path} cannot be read: {error}.") from error


def read_recipe(folder: Path) -> Recipe:
    """The recipe in a folder; RecipeError where there is none, or none that this version reads."""
    path = folder / RECIPE_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RecipeError(f"There is no saved network in {folder}: it has no {RECIPE_FILE}.") from error
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not the JSON text that normless writes: {error}.") from error
    kinds = {"model": str | None, "scheme": str, "inputs": object, "training": dict, "versions": dict}
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise RecipeError(f"{path} is no recipe of a network: it states no format.")
    if values.pop("format") > _FORMAT:
        raise RecipeError(f"{path} was written by a later normless than this one; update normless to read it.")
    # Absent from those of earlier versions.
    digest = values.pop("digest", None)
    wrong = sorted(kinds.keys() ^ values.keys())
    wrong = wrong or [name for name, kind in kinds.items() if not isinstance(values[name], kind)]
    if wrong:
        raise RecipeError(f"{path} is no recipe of a network: {', '.join(wrong)} is not as normless writes it.")
    return Recipe(**values, digest=digest)


def versions_with(model: str | None) -> dict[str, str]:
    """The versions of normless and torch, and of the zoo that the text of a model names."""
    from normless import __version__

    versions = {"normless": __version__, "torch": str(torch.__version__)}
    source = (model or "").strip().partition(":")[0]
    if source in ZOOS:
        with suppress(PackageNotFoundError):
            versions[source] = version(source)
    return versions


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
    generator = torch.Generator().manual_seed(0)

    def example(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(map(example, value))
        if not isinstance(value, dict):
            return value
        if set(value) != _TENSOR:
            return {key: example(one) for key, one in value.items()}
        dtype = getattr(torch, value["dtype"])
        if dtype.is_floating_point:
            return torch.randn(value["shape"], generator=generator).to(floating)
        return torch.full(value["shape"], dtype == torch.bool, dtype=dtype)

    return example(description)
