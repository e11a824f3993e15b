"""Networks that come with weights, for figure 5 and table 2: read, given another classifier, recorded in training.

The text's figure 5 is of a "ResNet-50 pre-trained on ImageNet" (section 2). Of table 2 it says "the training task of
ResNet and its variants" and no more: whether its networks start from ImageNet is not in the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import normless as nl
from normless.code_names import names_of_data
from normless.errors import NormlessError
from normless.models import build_model, build_with_inputs, fitted_spec
from normless.probes import RideAlong, Setting, Watcher, every
from normless.residual import residual_map
from normless.saving import read_recipe
from normless.spec import format_call, is_saved, parse_call
from normless_lab.data import ImageData
from normless_lab.train import TrainConfig, train

TORCHVISION = "torchvision"
IMAGENET = "torchvision:resnet50(weights='IMAGENET1K_V1')"
# In a folder that normless did not write: the text of the model, beside one file with its state dict.
MODEL_FILE, STATE_FILES = "model.txt", (".safetensors", ".pt", ".pth")
# Arguments of a model's text that choose its weights, or that the data decide.
_CHOSEN = ("weights", "pretrained", "classes", "num_classes", "in_channels", "in_chans")


class WeightsError(NormlessError):
    """A folder has no network with weights, or they do not fit."""


def pretrained(weights: str, model: str) -> tuple[str, nn.Module]:
    """Return the text and the network of a folder, or the network `model` with torchvision's weights.

    Args:
        weights: `torchvision`, or a folder: one of `normless.save`, or one with `model.txt`, a text that
            `normless inspect` takes, and a state dict (.safetensors, .pt or .pth; nothing else is unpickled).
        model: the text of the network with torchvision's weights.
    """
    if weights == TORCHVISION:
        return model, build_model(model)
    folder = Path(weights)
    if is_saved(folder):
        text = read_recipe(folder).model
        if text is None:
            raise WeightsError(f"The recipe in {folder} names no model; save the network again with model=….")
        return text, nl.load(folder)
    files = sorted(path for path in folder.glob("*") if path.suffix in STATE_FILES)
    if not (folder / MODEL_FILE).is_file() or len(files) != 1:
        raise WeightsError(
            f"Expected torchvision, a folder of normless.save, or a folder with {MODEL_FILE} and one state dict "
            f"({', '.join(STATE_FILES)}), got {folder} with {len(files)} of them."
        )
    text, file = (folder / MODEL_FILE).read_text(encoding="utf-8").strip(), files[0]
    with names_of_data(folder / MODEL_FILE):
        network = build_model(text)
    safe = file.suffix == ".safetensors"
    state: dict[str, Tensor] = load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise WeightsError(f"The state dict {file} does not fit {text}: {' '.join(str(error).split())}") from error
    return text, network


def fitted(weights: str, model: str, data: ImageData, folder: Path) -> Path:
    """Save a pretrained network to a folder with a new classifier for the classes of a data set; return the folder.

    Raises:
        WeightsError: a weight before the classifier does not fit the images.
    """
    text, trained = pretrained(weights, model)
    source, _, call = text.partition(":")
    name, arguments = parse_call(call)
    plain = {key: value for key, value in arguments.items() if key not in _CHOSEN}
    shape: Any = data.image_shape
    text = fitted_spec(f"{source}:{format_call(name, plain)}", classes=data.classes, image_shape=shape)
    network, inputs = build_with_inputs(text, image_shape=shape)
    assert isinstance(inputs, Tensor)
    classifier = residual_map(network, inputs).classifier
    own, given = network.state_dict(), trained.state_dict()
    other = [key for key, value in own.items() if key not in given or given[key].shape != value.shape]
    misfits = [key for key in other if classifier is None or not key.startswith(f"{classifier}.")]
    if misfits:
        raise WeightsError(
            f"{misfits[0]} of {text} does not fit the weights of {weights}: only the classifier may be new."
        )
    network.load_state_dict(own | {key: value for key, value in given.items() if key in own and key not in other})
    nl.save(nl.convert(network, "batch_norm", inputs), folder, model=text, example_inputs=inputs)
    return folder


@dataclass
class GammaNorms(Watcher):
    """Euclidean norm of every norm's γ by role: a row per norm with `layer`, `role`, `gamma_norm`."""

    rows: list[tuple[str, str, float]] = field(default_factory=list, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Measure the γ before the pass."""
        structure = setting.map
        named = dict(setting.model.named_parameters(remove_duplicate=False))
        gammas = {path: structure.by_path[path].gamma for path in structure.norms}
        self.rows = [
            (path, structure.norms[path], float(named[gamma].detach().double().norm()))
            for path, gamma in gammas.items()
            if gamma in named
        ]

    def table(self) -> pd.DataFrame:
        """Return the rows."""
        return pd.DataFrame(self.rows, columns=["layer", "role", "gamma_norm"])


def recorded(configs: Mapping[str, TrainConfig], folder: Path, steps: int) -> dict[str, pd.DataFrame]:
    """Train configurations in a folder, and return `stream` and `gammas` every so many steps, with `run` and `step`.

    `stream` has a row per block: `variance` of a channel on average, and `pooled_variance`.
    """
    tables: dict[str, list[pd.DataFrame]] = {"stream": [], "GammaNorms": []}
    for place, (label, config) in enumerate(configs.items()):
        own = folder / f"{place:02d}"
        train(config, own, ride_along=RideAlong(("stream", GammaNorms()), every(steps)))
        for name, parts in tables.items():
            rows = pd.concat([pd.read_parquet(path) for path in sorted((own / "probes" / name).glob("*.parquet"))])
            parts.append(rows.assign(run=label))
    stream, gammas = (pd.concat(parts, ignore_index=True) for parts in tables.values())
    named = {"stream_channel_variance": "variance", "stream_variance": "pooled_variance"}
    columns = ["run", "step", "name", *named.values()]
    return {
        "stream": stream.rename(columns=named)[columns],
        "gammas": gammas[["run", "step", "layer", "role", "gamma_norm"]],
    }
