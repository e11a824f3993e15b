"""The network and the batch for commands that measure a network."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jsonargparse import ArgumentParser, Namespace

from normless.cli._network import (
    MOST_NUMBERS,
    add_network_arguments,
    heading,
    image_shape,
    model_for_data,
    model_with_inputs,
    shapes,
)
from normless.errors import InputsError
from normless.registry import EXTENSIONS, TABLES
from normless.spec import format_call, parse_call

if TYPE_CHECKING:
    from torch import Tensor, nn

    from normless.models._spec import Shape
    from normless.residual import ResidualMap


@dataclass(frozen=True)
class NetworkAndBatch:
    """A network before and after its conversion by `scheme` (the same network without a scheme), and a batch.

    The batch is inputs and a class for every row of logits; `data` describes their origin.
    """

    original: nn.Module
    network: nn.Module
    scheme: str | None
    batch: tuple[Any, Tensor]
    data: str
    map: ResidualMap

    def facts(self, namespace: Namespace) -> dict[str, Any]:
        """Return a description of the network and the batch for ``--json``."""
        network = {"model": namespace.model, "scheme": self.scheme, "input": shapes(self.batch[0])}
        return network | {"data": self.data, "seed": namespace.seed}

    def heading(self, namespace: Namespace, *words: str) -> str:
        """Return a description of the network and the batch as a line."""
        return heading(namespace.model, self.scheme, self.batch[0], self.data, f"seed {namespace.seed}", *words)


def add_batch_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the network, its scheme and the batch."""
    add_network_arguments(parser)
    group = parser.add_argument_group("conversion and batch")
    group.add_argument("--scheme", type=str, default=None, help="convert the network first, for example by skipinit")
    group.add_argument(
        "--data",
        type=str,
        default=None,
        help="data set of the batch, such as digits or cifar10; by default random images, or the inputs that "
        "FILE.py:FUNCTION returns, and random classes",
    )
    group.add_argument("--data-root", type=Path | None, default=None, help="folder of the data sets")
    group.add_argument("--batch-size", type=int, default=32, help="examples in the batch")
    group.add_argument("--seed", type=int, default=0, help="seed of the initial weights and the batch")


def subject_of(namespace: Namespace) -> NetworkAndBatch:
    """Build the network, convert it by `--scheme`, and make the batch."""
    shape = image_shape(namespace)
    if namespace.batch_size < 1:
        raise ValueError(f"Expected --batch-size to be 1 or more, got {namespace.batch_size}.")
    if namespace.batch_size * prod(shape or (1,)) > MOST_NUMBERS:
        raise ValueError(f"Expected a --batch-size of at most {MOST_NUMBERS:,} numbers, got {namespace.batch_size}.")

    import torch

    from normless._internal.arguments import arguments_of
    from normless.conversion import convert, scheme_of
    from normless.residual import residual_map

    torch.manual_seed(namespace.seed)
    if namespace.data is None:
        original, inputs = model_with_inputs(namespace.model, classes=namespace.classes, image_shape=shape)
        # Several or named inputs are those of a file.
        if isinstance(inputs, torch.Tensor) and inputs.is_floating_point():
            generator = torch.Generator().manual_seed(namespace.seed)
            inputs = torch.randn(namespace.batch_size, *inputs.shape[1:], generator=generator)
        targets, data = None, "random inputs and classes"
    else:
        images, targets, classes = EXTENSIONS["training_batch"](
            namespace.data, namespace.data_root, namespace.batch_size, namespace.seed
        )
        inputs = images.to(torch.get_default_dtype())
        data = f"{len(inputs)} training examples of {namespace.data}"
        shape = cast("Shape", tuple(inputs.shape[1:]))
        original = model_for_data(namespace.model, classes, shape)
    positional, named = arguments_of(inputs)
    if namespace.data is not None and isinstance(inputs, torch.Tensor):
        check_first_layer(original, inputs, namespace.model, namespace.data)
    network = original
    if namespace.scheme is not None:
        network = convert(original, namespace.scheme, *positional, **named)
    if targets is None:
        targets = _random_classes(network, positional, named, namespace.seed)
    blocks = residual_map(network, *positional, **named)
    return NetworkAndBatch(original, network, scheme_of(network), (inputs, targets), data, blocks)


def check_first_layer(network: nn.Module, inputs: Tensor, model: str, data: str) -> None:
    """Raise an InputsError if the first layer that runs takes other channels than the examples of a data set have.

    The message has the option of the data set that repeats a channel, if there is one.
    """
    import torch

    from normless._internal.arguments import unfitting
    from normless.state import preserve_state

    found: list[InputsError | None] = []

    def compare(name: str, layer: nn.Module, given: tuple[Any, ...]) -> None:
        found.append(unfitting(name, layer, *given[:1]))
        raise RuntimeError("The rest of the network need not run.")

    layers = [(name, layer) for name, layer in network.named_modules() if hasattr(layer, "weight")]
    hooks = [layer.register_forward_pre_hook(partial(compare, name)) for name, layer in layers]
    with suppress(Exception), preserve_state(network, training=False), torch.no_grad():
        network(inputs[:1])
    for hook in hooks:
        hook.remove()
    if (error := next(iter(found), None)) is not None:
        name, options = parse_call(data)
        advice = f' --data "{format_call(name, options | {"channels": error.takes})}" repeats the channel.'
        repeats = "channels" in signature(TABLES["data"].find(name)).parameters
        raise InputsError(f"{model} does not fit {data}: {error}{advice if repeats else ''}") from error


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy, in nats, of logits (…, classes) for targets (…)."""
    import torch.nn.functional as F

    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def _random_classes(network: nn.Module, positional: Any, named: Any, seed: int) -> Tensor:
    """Draw a class for every row of the network's logits."""
    import torch

    from normless._internal.arguments import applied
    from normless.probes.hooks._watcher import logits_of
    from normless.state import preserve_state

    with preserve_state(network, training=True), torch.no_grad():
        logits = logits_of(applied(network, *positional, **named))
    if logits is None or logits.dim() < 2:
        raise ValueError(
            f"Expected logits of shape (…, classes) from {type(network).__name__}, got "
            f"{'no tensor' if logits is None else tuple(logits.shape)}; measure it in Python with another loss."
        )
    return torch.randint(logits.shape[-1], logits.shape[:-1], generator=torch.Generator().manual_seed(seed))
