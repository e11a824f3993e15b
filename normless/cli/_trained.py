"""``normless diagnose MODEL --trained``: whether a trained network is healthy, on calibration batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jsonargparse import ArgumentParser, Namespace

from normless.cli._batch import check_first_layer, cross_entropy
from normless.cli._inspect import SUFFIXES
from normless.cli._network import heading, image_shape, model_for_data, model_with_inputs, shapes
from normless.registry import EXTENSIONS, Registry
from normless.spec import holds_network, is_run, split_source

if TYPE_CHECKING:
    from torch import Tensor, nn

    from normless.doctor.trained._diagnosis import Health
    from normless.models._spec import Shape

# Options of the diagnosis of a training, with their values if they are not given.
_OF_TRAINING = {"scheme": None, "optimizer": None, "rate": None, "apply": False, "investigate": False}
_OWN = {"inputs": None, "batches": 4, "figure": None}


def add_trained_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for trained networks."""
    group = parser.add_argument_group("trained networks")
    group.add_argument(
        "--trained",
        action="store_true",
        help="the network is trained: measure in evaluation mode whether it is healthy, on --data or --inputs",
    )
    group.add_argument(
        "--inputs",
        type=str,
        default=None,
        metavar="FILE.py:NAME",
        help="function that returns calibration batches: a list or DataLoader of (inputs, targets), preprocessed as "
        "in training",
    )
    group.add_argument("--batches", type=int, default=_OWN["batches"], help="number of calibration batches to read")
    group.add_argument(
        "--figure", type=Path | None, default=None, help="draw the health by layer to this file: .svg, .png or .pdf"
    )


def check_trained_arguments(namespace: Namespace) -> None:
    """Raise a ValueError for options that do not belong together."""
    others = _OF_TRAINING if namespace.trained else _OWN
    given = [f"--{name}" for name, default in others.items() if getattr(namespace, name) != default]
    if given:
        words = ("without", "concerns a training") if namespace.trained else ("with", "concerns a trained network")
        raise ValueError(f"Expected {given[0]} {words[0]} --trained: it {words[1]}.")
    if namespace.batches < 1:
        raise ValueError(f"Expected --batches to be 1 or more, got {namespace.batches}.")
    if namespace.figure is not None and namespace.figure.suffix.lower() not in SUFFIXES:
        raise ValueError(f"Expected --figure to end in {', '.join(SUFFIXES)}, got {str(namespace.figure)!r}.")
    if namespace.inputs is not None and namespace.data is not None:
        raise ValueError("Expected --data or --inputs, got both.")


def health_of(namespace: Namespace) -> tuple[Health, dict[str, Any], str]:
    """Build or load the network and diagnose it; return the result, facts for ``--json``, and a heading."""
    from normless.doctor.trained._diagnosis import diagnose_trained

    network, batches, data = _subject(namespace)
    health = diagnose_trained(network, batches, loss=_loss, most_batches=namespace.batches)
    from normless.doctor.facts._batches import read_batches

    inputs = read_batches(network, batches, 1)[0][0]
    facts = {"model": namespace.model, "scheme": None, "input": shapes(inputs), "data": data, "seed": namespace.seed}
    return health, facts, heading(namespace.model, None, inputs, data)


def _subject(namespace: Namespace) -> tuple[nn.Module, Any, str]:
    """Return the network, its batches, and what they are."""
    import torch

    torch.manual_seed(namespace.seed)
    shape = image_shape(namespace)
    if namespace.data is None and namespace.inputs is None and is_run(namespace.model):
        namespace.data, namespace.data_root = EXTENSIONS["run_data"](Path(namespace.model))
    if namespace.data is not None:
        return _on_data_set(namespace)
    if namespace.inputs is not None:
        network, _ = model_with_inputs(namespace.model, classes=namespace.classes, image_shape=shape)
        batches = Registry[Any]("function of batches").make(namespace.inputs)
        # A loader is read again for each pass.
        return (
            network,
            batches if isinstance(batches, (tuple, dict, torch.Tensor)) else list(_first(batches, namespace)),
            namespace.inputs,
        )
    source = "" if holds_network(namespace.model) else split_source(namespace.model)[0].removesuffix(":")
    if source and source not in ("normless", "torchvision", "timm", "transformers"):
        from normless.models._spec import build_with_own_inputs

        network, inputs = build_with_own_inputs(namespace.model, classes=namespace.classes, image_shape=shape)
        if inputs is not None:
            return network, [(inputs, None)], f"the inputs that {namespace.model} returns"
    raise ValueError(
        "Expected data of the kind that the network was trained on, since statistics of random inputs say nothing: "
        "--data NAME, --inputs FILE.py:FUNCTION that returns batches, or a FILE.py:FUNCTION that returns (network, "
        "inputs)."
    )


def _first(batches: Any, namespace: Namespace) -> Any:
    from itertools import islice

    try:
        return islice(batches, namespace.batches)
    except TypeError as error:
        raise ValueError(
            f"Expected {namespace.inputs} to return batches, a list or DataLoader of (inputs, targets), got "
            f"{type(batches).__name__}."
        ) from error


def _on_data_set(namespace: Namespace) -> tuple[nn.Module, Any, str]:
    """Return the network fitted to a data set, and training examples of that in batches."""
    import torch

    size = namespace.batch_size
    if size < 1:
        raise ValueError(f"Expected --batch-size to be 1 or more, got {size}.")
    images, targets, classes = EXTENSIONS["training_batch"](
        namespace.data, namespace.data_root, size * namespace.batches, namespace.seed
    )
    images = images.to(torch.get_default_dtype())
    shape = cast("Shape", tuple(images.shape[1:]))
    network = model_for_data(namespace.model, classes, shape)
    check_first_layer(network, images, namespace.model, namespace.data)
    batches = [(images[at : at + size], targets[at : at + size]) for at in range(0, len(images), size)]
    return network, batches, f"{len(images)} training examples of {namespace.data}"


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross entropy of logits (…, classes) or (B, classes, …)."""
    import torch.nn.functional as F

    return cross_entropy(logits, targets) if logits.shape[:-1] == targets.shape else F.cross_entropy(logits, targets)
