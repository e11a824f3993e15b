"""A converted network saved as a folder: its weights as safetensors and a JSON recipe; nothing is pickled.

The recipe names the network and the scheme. To load is to build the network, convert it and fill in the weights.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_model
from torch import Tensor, nn

from normless.arguments import arguments_of
from normless.conversion import convert, scheme_of
from normless.errors import RecipeError
from normless.models.spec import Inputs, Shape, build_model, build_with_inputs
from normless.models.text_classifier import SOURCE as TRANSFORMERS
from normless.models.text_classifier import is_path
from normless.recipe import RECIPE_FILE, Recipe, described, example_of, read_recipe, versions_with
from normless.schemes import parse_scheme
from normless.spec import absolute

WEIGHTS_FILE = "model.safetensors"


def save(
    net: nn.Module, path: str | Path, model: str | None = None, *, example_inputs: Inputs | None = None
) -> tuple[Path, Path]:
    """Save a converted network to a folder: its weights and buffers, and the recipe that `load` builds it by.

    Tied parameters stay tied; weights are stored in their own dtype. Whether a parameter is trainable is not stored.

    Args:
        net: the network, as `convert` returned it or trained since then.
        path: the folder; made if need be. A network that was saved there is replaced.
        model: text that names the network before its conversion, `torchvision:resnet50` or another that
            `normless inspect` takes; None where none does, and then `load` must be given the network.
        example_inputs: one tensor, a tuple of positional or a dictionary of keyword arguments of its forward; their
            shapes and dtypes are recorded. Those that `model` brings if None.

    Returns:
        The paths of the weights and of the recipe.

    Raises:
        RecipeError: the network is not converted, its scheme has no text, or something in it or its inputs has no
            place in the files.
        ValueError: `model` is no text of a network.
    """
    net = getattr(net, "_orig_mod", net)  # what torch.compile wraps
    recipe = Recipe(
        model=None if model is None else _absolute(model),
        scheme=_scheme_text(net),
        inputs=None if example_inputs is None else described(example_inputs),
        training=_modes(net),
        versions=versions_with(model),
    )
    strangers = [name for name, value in net.state_dict().items() if not isinstance(value, Tensor)]
    if strangers:
        raise RecipeError(f"safetensors holds tensors alone, and {strangers[0]} in the network's state is none.")
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    # A folder with a recipe is complete, whenever the process is killed.
    (folder / RECIPE_FILE).unlink(missing_ok=True)
    save_model(net, str(folder / WEIGHTS_FILE))
    recipe.write(folder)
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
            inputs = example_of(recipe.inputs, original.parameters())
        positional, keywords = arguments_of(inputs)
        net = convert(original, recipe.scheme, *positional, **keywords)
    _fill(net, folder, recipe)
    for name, training in recipe.training.items():
        net.get_submodule(name).train(training)
    return net, inputs


def model_with_inputs(
    spec: str, *, classes: int | None = None, image_shape: Shape | None = None
) -> tuple[nn.Module, Inputs | None]:
    """What `build_with_inputs` builds, or where the text is a folder that `save` wrote, the network saved there."""
    if not (Path(spec) / RECIPE_FILE).is_file():
        return build_with_inputs(spec, classes=classes, image_shape=image_shape)
    if classes is not None:
        raise ValueError(f"The network saved in {spec} has its classes already; leave the number of classes out.")
    images = None if image_shape is None else torch.randn(2, *image_shape, generator=torch.Generator().manual_seed(0))
    return load_with_inputs(spec, example_inputs=images)


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
    modes = {"": net.training}
    for path, module in net.named_modules(remove_duplicate=False):
        if path and module.training != net.get_submodule(path.rpartition(".")[0]).training:
            modes[path] = module.training
    return modes


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
    for name, value in stored.items():
        state[name].data = state[name].data.to(value.dtype)
    net.load_state_dict(stored)


def _stored(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file, those that were tied under each of their names."""
    try:
        with safe_open(str(path), framework="pt") as file:
            stored: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return stored | {other: stored[kept] for other, kept in (file.metadata() or {}).items() if kept in stored}
    except (FileNotFoundError, SafetensorError) as error:
        raise RecipeError(f"The weights {path} cannot be read: {error}.") from error
