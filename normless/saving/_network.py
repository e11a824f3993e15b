"""A converted network saved as a folder: its weights as safetensors and a JSON recipe; nothing is pickled.

The recipe names the network and the scheme, and holds the settings of the modules. Loading builds the network,
converts it, and restores the weights and settings. Before a network is saved, loading is tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

import torch
from torch import Tensor, nn

from normless import schemes
from normless._internal.arguments import CARRIED, arguments_of, carried_as_keywords, device_of, on_device_of
from normless._internal.code_digest import digest_of_code
from normless._internal.copying import copied
from normless._internal.warn import warn
from normless.affine._maps import FROZEN
from normless.code_names import name_code, names_of_data, remember_code
from normless.conversion import MARK, convert_on, scheme_of
from normless.errors import ChangedCodeWarning, NormlessError, RecipeError
from normless.exclusive import exclusive
from normless.models._downloads import with_random_weights
from normless.models._spec import ZOOS, Inputs, build_model, build_with_inputs
from normless.models._text_classifier import TRANSFORMERS, is_path
from normless.registry import EXTENSIONS
from normless.saving._code_digest import code_named
from normless.saving._folder import WEIGHTS_FILE, read, written
from normless.saving._recipe import Recipe, State, described, example_of, versions_with
from normless.saving._state import check_equal, complete, further_buffers, prepare, state_of
from normless.spec import RECIPE_FILE, absolute, is_run
from normless.state import preserve_random_state

_PLAIN = "as_written"


@exclusive
def save(
    net: nn.Module, path: str | Path, model: str | None = None, *, example_inputs: Inputs | None = None
) -> tuple[Path, Path]:
    """Save a converted, folded or frozen network to a folder: its tensors, and the recipe to `load` it by.

    The folder holds weights and buffers in their own dtype, the ties of parameters, which parameters are trained,
    modes, and the settings of modules (ε, momentum, slopes, dropout and every other attribute that is plain data). If
    `model` is given, the network is rebuilt from the recipe before it is saved, and must equal the original in these
    settings and in its outputs on the example inputs, in evaluation and in training mode.

    Args:
        net: the network, as `convert`, `fold` or `freeze` returned it or trained since then.
        path: the folder; created if necessary. A network that was saved there is replaced, in one instant: after an
            error or a killed process the folder holds the former network or the new one. Several processes may save
            to one folder at once, and load meanwhile: the last that ends determines the network.
        model: text that names the network before its conversion, `torchvision:resnet50` or another that
            `normless inspect` takes. If None, `load` must be given the network. A file is recorded by its path
            relative to the folder, and no argument that asks for trained weights, as `pretrained=True`.
        example_inputs: one tensor, a tuple of positional or a dictionary of keyword arguments of its forward; their
            shapes and dtypes are recorded. If None, those of the conversion.

    Returns:
        The paths of the weights and of the recipe.

    Raises:
        RecipeError: the network is not converted, its scheme has no text, the network or its inputs contain something
            that the files cannot hold, `model` names another network, or `path` is a file.
        ValueError: `model` does not name a network.
    """
    net = getattr(net, "_orig_mod", net)  # what torch.compile wraps
    folder = Path(path)
    recipe = Recipe(
        # Those that the network was trained with are beside the recipe.
        model=None if model is None else with_random_weights(_absolute(model)),
        scheme=_scheme_text(net),
        inputs=described(_carried(net) if example_inputs is None else example_inputs),
        training=_modes(net),
        versions=versions_with(model),
        state=State(),
    )
    others = [name for name, value in net.state_dict().items() if not isinstance(value, Tensor)]
    if others:
        raise RecipeError(f"safetensors holds only tensors, and {others[0]} in the network's state is not a tensor.")
    file = next((parent for parent in (folder, *folder.parents) if parent.is_file()), None)
    if file is not None:
        raise RecipeError(f"Expected a folder to save to, but {file} is a file; name another folder.")
    recipe = replace(recipe, state=state_of(net))
    if model is not None:
        recipe = _tried(net, recipe)
    recipe = replace(recipe, code={name: digest_of_code(file) for name, file in _code(recipe, recipe.model).items()})
    recipe.written(folder)
    weights = written(net, recipe, folder)
    remember_code(model or "", recipe.scheme)
    return weights, folder / RECIPE_FILE


def load(
    path: str | Path,
    model: str | nn.Module | None = None,
    *,
    example_inputs: Inputs | None = None,
    trust_code: bool = False,
    edited: bool = False,
) -> nn.Module:
    """Load the network that `save` wrote to a folder, on the CPU and in the mode in which it was saved.

    The folder of a run of `normless train` is taken too: its network with the weights of the last checkpoint, in
    evaluation mode.

    Code that the recipe names (`FILE.py:NAME`, `MODULE:NAME`) is executed with `trust_code` or the environment
    variable `NORMLESS_TRUST_CODE=1`, or if it was named in this process before: as `model`, or in a call such as
    `nl.scheme("FILE.py:NAME")`; and if you saved or trained a network of the same file, unchanged, before.

    Args:
        path: the folder of a saved network or of a run.
        model: the network before its conversion, or a text that names it, in place of the model in the recipe. A
            network is not changed; its copy is converted on its device and loaded.
        example_inputs: example inputs in place of those in the recipe; as in `save`.
        trust_code: execute the code that the recipe names; for folders whose origin you trust.
        edited: accept a recipe that was changed since it was saved. `normless convert --seal DIR` makes an edited
            recipe one that is accepted without this.

    Raises:
        UntrustedCodeError: the recipe names code that is not trusted.
        RecipeError: the folder does not hold a saved network, the recipe was changed, the recipe and `model` do not
            name the network, or the weights or settings do not fit it.
        ValueError, ModuleNotFoundError: the recipe's model or scheme is unknown, or its library is not installed.
    """
    return load_with_inputs(path, model, example_inputs=example_inputs, trust_code=trust_code, edited=edited)[0]


@exclusive
def load_with_inputs(
    path: str | Path,
    model: str | nn.Module | None = None,
    *,
    example_inputs: Inputs | None = None,
    trust_code: bool = False,
    edited: bool = False,
) -> tuple[nn.Module, Inputs | None]:
    """Load a network as `load` does, and return it with the example inputs of its conversion, if there are any."""
    folder = Path(path)
    if is_run(folder):
        run = EXTENSIONS["run_network"](folder, model, trust_code=trust_code)
        return run.network, run.inputs if example_inputs is None else example_inputs
    recipe, intact, stored = read(folder, edited=edited)
    original = recipe.model if model is None else model
    if original is None:
        raise RecipeError(
            f"The recipe in {folder} does not name the network that was converted; pass the network as it was before "
            "its conversion: nl.load(path, model=…)."
        )
    if isinstance(model, str):
        name_code(model)
    with names_of_data(folder / RECIPE_FILE, trust_code=trust_code):
        net, inputs = _rebuilt(recipe, original, example_inputs)
    _warn_of_changed_code(recipe, original, folder)
    try:
        _fill(net, recipe, stored)
    except RecipeError as error:
        now, then = versions_with(recipe.model), recipe.versions
        changed = [f"{name} {old} (now {now.get(name)})" for name, old in then.items() if now.get(name) != old]
        raise RecipeError(
            f"The weights in {folder} do not fit {recipe.model or 'the network given'} converted by {recipe.scheme}: "
            f"{error} " + (f"It was saved with {', '.join(changed)}." if changed else "Is it another?")
        ) from error
    if intact is None:
        raise RecipeError(
            f"The weights {folder / WEIGHTS_FILE} are damaged: they are not those that were saved there."
        )
    return net, inputs


def _rebuilt(recipe: Recipe, original: str | nn.Module, inputs: Inputs | None) -> tuple[nn.Module, Inputs | None]:
    """Return the network of a recipe with initial weights, and the example inputs of its conversion."""
    # The random weights of the network and of its conversion are overwritten later.
    with preserve_random_state():
        if isinstance(original, str):
            original, own = build_with_inputs(original) if recipe.inputs is None else (build_model(original), None)
            inputs = own if inputs is None else inputs
        if inputs is None and recipe.inputs is not None:
            try:
                inputs = example_of(recipe.inputs, original.parameters())
            except (TypeError, RuntimeError, AttributeError) as error:
                raise RecipeError(f"The recipe describes no example inputs: {error}.") from error
        positional, keywords = on_device_of(original, *arguments_of(inputs))
        if not (positional or keywords or schemes.scheme(recipe.scheme).edits):
            net = copied(original)
            setattr(net, MARK, recipe.scheme)
            return net, inputs
        # Whether the conversion may be partial was decided before; that it is the same is checked later.
        given = [(positional, keywords)]
        return convert_on(original, recipe.scheme, given, allow_partial=True, tells=False), inputs


def _code(recipe: Recipe, original: str | nn.Module | None) -> dict[str, Path]:
    """Return the files of users that define the network and its scheme, by their names in the texts."""
    texts = [recipe.scheme, *([original] if isinstance(original, str) else [])]
    return code_named(*texts, others=(*ZOOS, "normless"))


def _warn_of_changed_code(recipe: Recipe, original: str | nn.Module, folder: Path) -> None:
    files = _code(recipe, original)
    changed = [
        name for name, digest in recipe.code.items() if name in files and digest_of_code(files[name]) != digest
    ]
    if changed:
        warn(
            f"{', '.join(changed)} changed since the network in {folder} was saved, so that it may compute something "
            "else. Restore the code, or save the network again.",
            ChangedCodeWarning,
        )


def _fill(net: nn.Module, recipe: Recipe, stored: Mapping[str, Tensor]) -> None:
    """Restore tensors, dtypes, settings and modes in a rebuilt network."""
    prepare(net, recipe.state, stored)
    weights = {name: value for name, value in stored.items() if name not in recipe.state.buffers}
    state = net.state_dict(keep_vars=True)
    differing = {
        "are not in the file": [name for name in state if name not in weights],
        "are not in the network": [name for name in weights if name not in state],
        "differ in shape": [name for name in state if name in weights and state[name].shape != weights[name].shape],
    }
    problems = [f"{len(names)} {what}, the first {names[0]}" for what, names in differing.items() if names]
    if problems:
        raise RecipeError(f"{'; '.join(problems)}.")
    for name, value in weights.items():
        state[name].data = state[name].data.to(value.dtype)
    net.load_state_dict(weights)
    complete(net, recipe.state, stored)
    unknown = recipe.training.keys() - dict(net.named_modules(remove_duplicate=False)).keys()
    if unknown:
        raise RecipeError(f"The recipe has modes of modules that the network does not have: {min(unknown)}.")
    for name, training in recipe.training.items():
        net.get_submodule(name).train(training)


def _tried(net: nn.Module, recipe: Recipe) -> Recipe:
    """Check that a recipe rebuilds an equal network; return it without the buffers that its model provides."""
    assert recipe.model is not None
    try:
        rebuilt, inputs = _rebuilt(recipe, recipe.model, None)
        built = further_buffers(rebuilt)
        buffers = {
            name: buffer for name, buffer in further_buffers(net).items() if not _same(buffer, built.get(name))
        }
        recipe = replace(recipe, state=replace(recipe.state, buffers=list(buffers)))
        stored = {name: value.detach().cpu() for name, value in (net.state_dict() | buffers).items()}
        _fill(rebuilt, recipe, stored)
        check_equal(net, rebuilt.to(device_of(net)), on_device_of(net, *arguments_of(inputs)))
    except NormlessError as error:
        named = shorten(f"{recipe.model} converted by {recipe.scheme}", 200, placeholder=" …")
        raise RecipeError(
            f"{named} is not this {type(net).__name__}, so nl.load would return another network: {error} "
            "Pass the text of the model that was converted; or leave it out and pass the model to nl.load."
        ) from error
    return recipe


def _same(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())


def _scheme_text(net: nn.Module) -> str:
    """Return the text of the scheme of a network, by which it can be converted again."""
    text = scheme_of(net)
    if text is None and not getattr(net, FROZEN, False):
        raise RecipeError(
            f"This {type(net).__name__} carries no scheme: nl.save is for networks that nl.convert returned, and "
            "those of nl.fold and nl.freeze. Of a wrapper (DistributedDataParallel) pass the network inside it."
        )
    try:
        return schemes.scheme(text or _PLAIN).text
    except ValueError as error:
        what = f"the scheme {text!r} of this {type(net).__name__}"
        raise RecipeError(f"The recipe could not name {what}: {error}") from error


def _carried(net: nn.Module) -> Inputs | None:
    """Return the example inputs of a network's conversion, without values, or None if there are none."""
    positional, keywords = vars(net).get(CARRIED, ((), {}))
    if positional and keywords:
        # A recipe holds only one kind.
        return carried_as_keywords(net)
    if keywords or not positional:
        return keywords or None
    single: Inputs = positional[0] if isinstance(positional[0], Tensor) and len(positional) == 1 else positional
    return single


def _absolute(model: str) -> str:
    """Return the text of a model, with an absolute path if it names a file or folder."""
    source, separator, call = model.strip().partition(":")
    if not separator:
        raise ValueError(f"Expected the text of a model, as torchvision:resnet50, got {model!r}.")
    if source == TRANSFORMERS:
        return f"{source}:{Path(call.strip()).resolve()}" if is_path(call) else model.strip()
    return absolute(model)


def _modes(net: nn.Module) -> dict[str, bool]:
    """Return the mode of the network, and of every module with another mode than its parent."""
    modes = {path: module.training for path, module in net.named_modules(remove_duplicate=False)}
    return {path: mode for path, mode in modes.items() if not path or mode != modes[path.rpartition(".")[0]]}
