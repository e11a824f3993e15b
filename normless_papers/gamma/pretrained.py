"""Networks that come with weights, for figures 3 and 5 and table 2: read, and given a classifier for other data.

The text's figure 5 is of a "ResNet-50 pre-trained on ImageNet" (section 2). Of table 2 it says "the training task of
ResNet and its variants" and no more: whether its networks start from ImageNet is not in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import normless as nl
from normless.code_names import names_of_data
from normless.errors import NormlessError
from normless.models import build_model, build_with_inputs, fitted_spec
from normless.residual import residual_map
from normless.saving import digest_of, read_recipe
from normless.spec import RECIPE_FILE, format_call, is_saved, parse_call, split_source
from normless_lab.data import ImageData
from normless_papers.published import published_as

TORCHVISION = "torchvision"
IMAGENET = "torchvision:resnet50(weights='IMAGENET1K_V1')"
# In a folder that normless did not write: the text of the model, beside one file with its state dict.
MODEL_FILE, STATE_FILES = "model.txt", (".safetensors", ".pt", ".pth")
# Arguments of a model's text that choose its weights, or that the data decide.
_CHOSEN = ("weights", "pretrained", "classes", "num_classes", "in_channels", "in_chans")
# Counters of batch norms, which older state dicts do not have.
_COUNTER = "num_batches_tracked"
StateDict = Mapping[str, Tensor]


class PretrainedWeightsError(NormlessError):
    """A folder has no network with weights, or they do not fit."""


def networks_in(weights: str) -> dict[str, str]:
    """Return the networks of a folder by name, each as the `weights` of `pretrained`.

    It is one network, named as the folder, or one for each state dict that is named after a network of table 2.
    """
    folder = Path(weights)
    if is_saved(folder) or (folder / MODEL_FILE).is_file():
        return {folder.name: weights}
    found: dict[str, str] = {}
    for file in _state_files(folder):
        name = _network_of(file)[0]
        if name in found:
            raise PretrainedWeightsError(
                f"Expected one state dict of {name} in {folder}, got {found[name]} and {file}."
            )
        found[name] = str(file)
    if not found:
        raise _nothing_in(folder)
    return found


def digests_of(weights: str) -> dict[str, str]:
    """Return the SHA-256 of the files of networks by name, without those of torchvision; empty if there are none."""
    path = Path(weights)
    files = [path] if path.is_file() else sorted(path.glob("*"))
    own = [file for file in files if file.suffix in STATE_FILES or file.name in (MODEL_FILE, RECIPE_FILE)]
    return {file.name: digest_of(file) for file in own}


def pretrained(weights: str, model: str) -> tuple[str, nn.Module]:
    """Return the text and the network of a folder or file, or the network `model` with torchvision's weights.

    Args:
        weights: `torchvision`; a folder of `normless.save`; a folder with `model.txt`, a text that `normless inspect`
            takes, and one state dict (.safetensors, .pt or .pth; nothing else is unpickled); or a state dict, or a
            folder with one, that is named after a network of table 2, as torchvision's resnet50-0676ba61.pth.
        model: the text of the network with torchvision's weights.

    Raises:
        WeightsError: there is no network with weights, or they do not fit it.
    """
    if weights == TORCHVISION:
        return model, build_model(model)
    text, read, where = _read(Path(weights))
    if is_saved(weights):
        return text, nl.load(weights)
    with names_of_data(where):
        network = build_model(text)
    state = read()
    misfits = _misfits(network.state_dict(), state)
    if misfits:
        raise PretrainedWeightsError(_misfit(where, text, misfits))
    network.load_state_dict(dict(state), strict=False)
    return text, network


def fitted(weights: str, model: str, data: ImageData, folder: Path) -> Path:
    """Save a pretrained network, see `pretrained`, to a folder, fitted to a data set; return the folder.

    The classifier is new unless it has the number of classes of the data. Code that `model.txt` names is called as it
    is written there.

    Raises:
        WeightsError: a weight before the classifier does not fit, or code returns a network of other classes.
    """
    own = (model, lambda: build_model(model).state_dict(), weights)
    text, read, where = own if weights == TORCHVISION else _read(Path(weights))
    shape: Any = data.image_shape
    with names_of_data(where):
        text = _for_data(text, data)
        network, inputs = build_with_inputs(text, image_shape=shape)
    assert isinstance(inputs, Tensor)
    state = read()
    classifier = residual_map(network, inputs).classifier
    misfits = _misfits(network.state_dict(), state)
    kept = {key: sentence for key, sentence in misfits.items() if classifier and key.startswith(f"{classifier}.")}
    if len(kept) < len(misfits):
        others = {key: sentence for key, sentence in misfits.items() if key not in kept}
        raise PretrainedWeightsError(f"{_misfit(where, text, others)} Only the classifier may be new.")
    network.load_state_dict({key: value for key, value in state.items() if key not in kept}, strict=False)
    with torch.no_grad():
        logits = network.eval()(inputs)
    if logits.shape[-1] != data.classes:
        raise PretrainedWeightsError(
            f"Expected {data.classes} logits of {text} for {data.name}, got {logits.shape[-1]}: let {MODEL_FILE} say "
            f"how many, as in net.py:network(classes={data.classes})."
        )
    network.train()
    nl.save(nl.convert(network, "batch_norm", inputs), folder, model=text, example_inputs=inputs)
    return folder


def _read(path: Path) -> tuple[str, Callable[[], StateDict], str]:
    """Return the text of a network, a function that reads its state dict, and the file of these weights."""
    if is_saved(path):
        text = read_recipe(path).model
        if text is None:
            raise PretrainedWeightsError(f"The recipe in {path} names no model; save the network again with model=….")
        return text, lambda: nl.load(path).state_dict(), str(path)
    files = _state_files(path)
    if len(files) != 1:
        raise _nothing_in(path)
    stated = (path if path.is_dir() else path.parent) / MODEL_FILE
    if not stated.is_file():
        state = _state_of(files[0])
        return _network_of(files[0], state)[1], lambda: state, str(files[0])
    text = stated.read_text(encoding="utf-8").strip()
    source, call = split_source(text)
    beside = stated.parent / source.removesuffix(":")
    # A file of code beside the weights.
    text = f"{beside}:{call}" if beside.suffix == ".py" and beside.is_file() else text
    return text, partial(_state_of, files[0]), str(files[0])


def _state_files(path: Path) -> list[Path]:
    """Return the state dicts in a folder, or the file itself."""
    files = [path] if path.is_file() else sorted(path.glob("*"))
    return [file for file in files if file.suffix in STATE_FILES]


def _state_of(file: Path) -> StateDict:
    """Read a state dict; no code is run."""
    try:
        safe = file.suffix == ".safetensors"
        state = load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # Of pickle, which has errors of many classes for bytes that are none of its own.
        raise PretrainedWeightsError(
            f"{file} cannot be read: it is damaged, or holds more than tensors, which could run code. Write it by "
            "torch.save(network.state_dict(), …)."
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        given = f"the entries {', '.join(map(str, state))}" if isinstance(state, Mapping) else type(state).__name__
        raise PretrainedWeightsError(
            f"Expected the tensors of a state dict in {file}, got {given}; save network.state_dict()."
        )
    return state


def _network_of(file: Path, state: StateDict | None = None) -> tuple[str, str]:
    """Return name and text of the network of table 2 that a file is named after, with the classes of its state."""
    models = published_as("gamma/table-2").budgets["paper"]["effort"]["variants"]
    names = {name.replace("_", ""): name for name in models}
    name = names.get(file.stem.partition("-")[0].replace("_", "").lower())
    if name is None:
        raise PretrainedWeightsError(
            f"{file} is not named after a network of table 2 ({', '.join(models)}): write the text of its network, "
            f"as torchvision:resnet34, to {MODEL_FILE} in a folder with this file alone."
        )
    text = str(models[name]["model"])
    if state is None or "fc.weight" not in state:
        return name, text
    source, call = split_source(text)
    known, arguments = parse_call(call)
    return name, source + format_call(known, arguments | {"classes": len(state["fc.weight"])})


def _for_data(text: str, data: ImageData) -> str:
    """Return the text of a network with the classes and channels of a data set; that of code as it is."""
    source, call = split_source(text)
    if source.removesuffix(":").endswith(".py"):
        return text
    name, arguments = parse_call(call)
    plain = {key: value for key, value in arguments.items() if key not in _CHOSEN}
    shape: Any = data.image_shape
    return fitted_spec(source + format_call(name, plain), classes=data.classes, image_shape=shape)


def _misfits(own: StateDict, given: StateDict) -> dict[str, str]:
    """Return by name how given tensors differ from those of a network."""
    misfits = {key: "is missing" for key in own if key not in given and not key.endswith(_COUNTER)}
    misfits |= {key: "is not in the network" for key in given if key not in own}
    for key in own.keys() & given.keys():
        shapes = ["×".join(map(str, value.shape)) or "a scalar" for value in (given[key], own[key])]
        if given[key].shape != own[key].shape:
            misfits[key] = f"is {shapes[0]}, and {shapes[1]} in the network"
    return {key: misfits[key] for key in [*own, *given] if key in misfits}


def _misfit(where: str, text: str, misfits: Mapping[str, str]) -> str:
    """Return the sentence about weights that do not fit."""
    name, how = next(iter(misfits.items()))
    more = f", and {len(misfits) - 1} more" if len(misfits) > 1 else ""
    return f"The weights in {where} do not fit {text}: {name} {how}{more}."


def _nothing_in(path: Path) -> PretrainedWeightsError:
    count = f"{len(_state_files(path))} state dicts" if path.exists() else "nothing"
    return PretrainedWeightsError(
        f"Expected torchvision, a folder of normless.save, a folder with {MODEL_FILE} and one state dict "
        f"({', '.join(STATE_FILES)}), or state dicts named after networks of table 2, as resnet50-0676ba61.pth, got "
        f"{path} with {count}."
    )
