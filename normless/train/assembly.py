"""From a configuration to the pieces of a run: data, augmentation, network, optimizer."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from normless.conversion import convert
from normless.data import Augmentation, ImageData, default_root, load_data
from normless.edits import HeadDropout
from normless.lifting import evaluating
from normless.models import build_model
from normless.optim import param_groups
from normless.residual import residual_map
from normless.saving import load
from normless.schemes import Scheme, parse_scheme
from normless.train.checkpoint import restored
from normless.train.config import TrainConfig
from normless.train.directory import RunDirectory
from normless.train.pretrained import check_saved, is_saved
from normless.train.settings import Settings


def make_fabric(config: Settings, devices: int) -> Fabric:
    """The Fabric that runs the training: one process, or those that torchrun started.

    Raises:
        ValueError: cuda is asked for and not there, or the number of processes is not `devices`.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != devices:
        raise ValueError(
            f"Expected {devices} processes for devices={devices}, but {started} runs this. Start it "
            f"with: torchrun --nproc-per-node {devices} -m normless {config.COMMAND} … --devices {devices}"
        )
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' needs a CUDA device, and torch finds none; use device='cpu' or 'auto'.")
    accelerator = "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    fabric = Fabric(
        accelerator=accelerator,
        devices=local,
        num_nodes=started // local,
        strategy="ddp" if started > 1 else "auto",
        precision=config.precision,
    )
    fabric.launch()
    return fabric


def load_config_data(config: TrainConfig) -> ImageData:
    """The data set that the configuration names; the runs of one process share what they loaded last."""
    return _loaded(config.data, default_root() if config.data_root is None else Path(config.data_root))


@lru_cache(maxsize=2)
def _loaded(name: str, root: Path) -> ImageData:
    # CIFAR-10 takes seconds to decode, more than an epoch of a small run.
    return load_data(name, root=root)


def augmentation_of(config: TrainConfig, data: ImageData) -> Augmentation:
    """The data set's default augmentation with what the configuration sets in its place."""
    chosen = {name: getattr(config, name) for name in ("crop", "flip", "cutout", "mixup")}
    return replace(data.default_augmentation, **{name: value for name, value in chosen.items() if value is not None})


def scheme_of_config(config: TrainConfig) -> Scheme:
    """The scheme that the configuration names, with its dropout.

    Raises:
        ValueError: the scheme is unknown, or brings a dropout of its own.
    """
    scheme = parse_scheme(config.scheme_text)
    if config.dropout is None:
        return scheme
    if any(isinstance(edit, HeadDropout) for edit in scheme.edits):
        raise ValueError(
            f"The scheme {scheme.text!r} has a dropout of its own, so dropout={config.dropout} would be a second; "
            "write the one meant as the scheme's argument, as in zeroinit(dropout=0.6)."
        )
    return scheme.extended(HeadDropout(config.dropout))


def build_network(config: TrainConfig, data: ImageData, inputs: Tensor) -> nn.Module:
    """The converted network before training, on the CPU, a pure function of the configuration and its files.

    `inputs` are `example_inputs`, on which the network is traced and schemes calibrate. The global generator is
    seeded with the configuration's seed.

    Raises:
        ValueError: the configuration names a saved network, and other edits or data that it does not fit.
    """
    torch.manual_seed(config.seed)
    if is_saved(config.model):
        return _saved_network(config, data, inputs)
    shape = data.image_shape
    model = build_model(config.model, classes=data.classes, image_shape=shape)  # type: ignore[arg-type]
    return convert(model, scheme_of_config(config), inputs)


def _saved_network(config: TrainConfig, data: ImageData, inputs: Tensor) -> nn.Module:
    """The network that the configuration names the folder of, with its saved weights, in the type torch makes."""
    check_saved(config)
    network = load(config.model.strip()).to(torch.get_default_dtype())
    try:
        with evaluating(network):
            logits = network(inputs[:1])
    except Exception as error:
        raise ValueError(
            f"The network saved in {config.model} does not run on an example of {data.name}, of shape "
            f"{'×'.join(map(str, inputs.shape[1:]))}: {error}"
        ) from error
    if logits.shape != (1, data.classes):
        raise ValueError(
            f"Expected {data.classes} logits for an example of {data.name}, and the network saved in {config.model} "
            f"returns {'×'.join(map(str, logits.shape[1:]))}; convert one with --classes {data.classes}."
        )
    return network


def example_inputs(config: TrainConfig, data: ImageData) -> Tensor:
    """The inputs [B, C, H, W] of the first training batch, without augmentation."""
    batches = data.train_batches(config.batch_size, seed=config.seed, epoch=0, augmentation=Augmentation())
    return next(iter(batches)).inputs.to(torch.get_default_dtype())


def groups_of_config(config: Settings, network: nn.Module, *inputs: Tensor) -> list[dict[str, Any]]:
    """The groups of parameters by the configuration's decay policy; `inputs` are what the network is traced on."""
    return param_groups(
        network,
        lr=config.rate,
        weight_decay=config.weight_decay,
        policy=config.decay_policy,
        scalar_lr_scale=config.scalar_rate_scale,
        example_inputs=inputs,
    )


def build_optimizer(config: TrainConfig, network: nn.Module, inputs: Tensor) -> Optimizer:
    """Stochastic gradient descent with heavy-ball momentum on the groups of the decay policy.

    One fused kernel updates all tensors: on a CPU core, for the 1,195 tensors of a 400-layer Wide-ResNet, it
    takes 0.3 of the time of `foreach`, and no longer on any network.
    """
    return SGD(groups_of_config(config, network, inputs), lr=config.rate, momentum=config.momentum, fused=True)


def clipped_parameters(config: TrainConfig, network: nn.Module, inputs: Tensor) -> tuple[nn.Parameter, ...]:
    """The parameters whose gradients the configuration clips: all but the classifier's, or none."""
    if config.clip is None:
        return ()
    path = residual_map(network, inputs).classifier
    classifier = set() if path is None else set(network.get_submodule(path).parameters())
    return tuple(parameter for parameter in network.parameters() if parameter not in classifier)


def trained_network(directory: Path) -> nn.Module:
    """The network of a run as its last finished epoch left it, on the CPU, in evaluation mode.

    Raises:
        RunDirectoryError: the directory holds no run, or one that finished no epoch.
    """
    place = RunDirectory(Path(directory))
    config = place.stored_config()
    place.check_trained()
    with torch.random.fork_rng(devices=[]):
        data = load_config_data(config)
        network = build_network(config, data, example_inputs(config, data))
    return restored(network, place.checkpoint)
