"""The folder of a run as a network, for `normless.load` and the commands that take a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from normless.code_names import name_code, names_of_data
from normless.errors import MissingExtraError
from normless.models import fitted_spec, with_random_weights
from normless.spec import RUN_FILE, holds_network
from normless_lab.process import read_yaml
from normless_lab.sweeps._runs import KINDS
from normless_lab.train import RunConfig
from normless_lab.train._directory import RunDirectoryError
from normless_lab.train._image_task import data_text
from normless_lab.train._training_run import network_and_task

# Of the example inputs, which are those of a training batch.
EXAMPLES = 8


class RunNetwork(NamedTuple):
    """The network of a run at its last checkpoint, example inputs, and the text of the unconverted network."""

    network: nn.Module
    inputs: Any
    model: str | None


def run_network(folder: Path, model: str | nn.Module | None = None, *, trust_code: bool = False) -> RunNetwork:
    """Load the network of a run of any kind; `model` is as in `normless.load`.

    Raises:
        RunDirectoryError: it has no checkpoint, or files that are not of a run.
        UntrustedCodeError: its configuration names code that is not trusted.
    """
    config = config_of(folder)
    if isinstance(model, str):
        name_code(model)
        config = replace(config, model=model)
    original = model if isinstance(model, nn.Module) else None
    network, task = network_and_task(folder, config, trust_code=trust_code, original=original)
    inputs = tuple(tensor[:EXAMPLES] for tensor in task.example_inputs())
    shape, classes = getattr(task.data, "image_shape", None), getattr(task.data, "classes", None)
    text = None if original is not None or holds_network(config.model) else with_random_weights(config.model)
    if text is not None:
        with names_of_data(folder / RUN_FILE, trust_code=trust_code):
            text = fitted_spec(text, classes=classes, image_shape=shape)
    return RunNetwork(network, inputs[0] if len(inputs) == 1 else inputs, text)


def run_data(folder: Path) -> tuple[str, Path | None]:
    """Return the text of a run's data set and its folder."""
    config = config_of(folder)
    return data_text(config), None if config.data_root is None else Path(config.data_root)


def config_of(folder: Path) -> RunConfig[Any]:
    """Return the configuration of a run, of whichever kind has these settings."""
    path, problem = folder / RUN_FILE, "it is not of a kind of run that is installed here"
    try:
        values = dict(read_yaml(path))
        with names_of_data(path):
            for kind in _kinds():
                if values.keys() <= {setting.name for setting in fields(kind)}:
                    try:
                        return kind.from_dict(values)
                    except (ValueError, TypeError) as error:
                        problem = str(error)
    except (ValueError, TypeError) as error:
        problem = str(error)
    raise RunDirectoryError(f"{path} is not the configuration of a run: {problem}")


def _kinds() -> Iterator[type[RunConfig[Any]]]:
    for name in KINDS:
        try:
            settings = KINDS[name].settings_class()
        except MissingExtraError:
            continue
        if issubclass(settings, RunConfig):
            yield settings
