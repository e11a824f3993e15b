"""The network and the batch of the commands that measure one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jsonargparse import ArgumentParser, Namespace

from normless.cli.network import add_network_arguments, image_shape, in_words, shapes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from normless.models import Shape
    from normless.residual import ResidualMap


@dataclass(frozen=True)
class Subject:
    """A network and a batch.

    Attributes:
        original: the network as it is built.
        network: what is measured: converted by `scheme`, or the original itself.
        scheme: the text of the scheme, None for none.
        inputs, targets: of the batch; targets are classes, one for every row of logits.
        data: where they come from, in words.
        map: the residual map of `network`.
    """

    original: nn.Module
    network: nn.Module
    scheme: str | None
    inputs: Any
    targets: Tensor
    data: str
    map: ResidualMap

    @property
    def batch(self) -> tuple[Any, Tensor]:
        """Inputs and targets."""
        return self.inputs, self.targets

    def facts(self, namespace: Namespace) -> dict[str, Any]:
        """What is measured, for ``--json``."""
        network = {"model": namespace.model, "scheme": self.scheme, "input": shapes(self.inputs)}
        return network | {"data": self.data, "seed": namespace.seed}

    def heading(self, namespace: Namespace, *words: str) -> str:
        """What is measured, as one line."""
        network = [namespace.model, *([f"converted by {self.scheme}"] if self.scheme else [])]
        return ", ".join([*network, in_words(self.inputs), self.data, f"seed {namespace.seed}", *words])


def add_batch_arguments(parser: ArgumentParser) -> None:
    """Add the network, its scheme, and what the batch is made of."""
    add_network_arguments(parser)
    parser.add_argument("--scheme", type=str, default=None, help="convert the network first, as by skipinit or none")
    parser.add_argument(
        "--data",
        type=str,
        default=None,
        help="data set to take the batch from, as digits or cifar10; if left out, normal random images, or what "
        "FILE.py:FUNCTION returned, and random classes",
    )
    parser.add_argument("--data-root", type=Path | None, default=None, help="folder with the data sets")
    parser.add_argument("--batch-size", type=int, default=32, help="examples in the batch")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the batch")


def subject_of(namespace: Namespace) -> Subject:
    """Build the network, convert it by `--scheme`, and make the batch."""
    shape = image_shape(namespace)
    if namespace.batch_size < 1:
        raise ValueError(f"Expected --batch-size to be 1 or more, got {namespace.batch_size}.")

    import torch

    from normless.arguments import arguments_of
    from normless.conversion import convert, scheme_of
    from normless.residual import residual_map
    from normless.saving import model_with_inputs

    torch.manual_seed(namespace.seed)
    if namespace.data is None:
        original, inputs = model_with_inputs(namespace.model, classes=namespace.classes, image_shape=shape)
        inputs = _of_size(inputs, namespace.batch_size, namespace.seed)
        targets, data = None, "random inputs and classes"
    else:
        inputs, targets, classes, data = _real(namespace)
        original, _ = model_with_inputs(
            namespace.model, classes=classes, image_shape=cast("Shape", tuple(inputs.shape[1:]))
        )
    positional, named = arguments_of(inputs)
    network = original
    if namespace.scheme is not None:
        network = convert(original, namespace.scheme, *positional, **named)
    if targets is None:
        targets = _random_classes(network, positional, named, namespace.seed)
    found = residual_map(network, *positional, **named)
    return Subject(original, network, scheme_of(network), inputs, targets, data, found)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats of logits (…, classes) at targets (…)."""
    import torch.nn.functional as F

    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def _of_size(inputs: Any, size: int, seed: int) -> Any:
    """Normal random values of the shape of one input tensor; several, or named ones, are what a file made them."""
    import torch

    if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point():
        return inputs
    return torch.randn(size, *inputs.shape[1:], generator=torch.Generator().manual_seed(seed))


def _real(namespace: Namespace) -> tuple[Tensor, Tensor, int, str]:
    """The first training batch of a data set, without augmentation, its number of classes, and words for it."""
    import torch

    from normless.data import Augmentation, load_data

    data = load_data(namespace.data, root=namespace.data_root)
    size = min(namespace.batch_size, data.train_size)
    batches = data.train_batches(size, seed=namespace.seed, epoch=0, augmentation=Augmentation())
    batch = next(iter(batches))
    inputs = batch.inputs.to(torch.get_default_dtype())
    return inputs, batch.targets, data.classes, f"{size} training examples of {namespace.data}"


def _random_classes(network: nn.Module, positional: Any, named: Any, seed: int) -> Tensor:
    """A class for every row of the network's logits."""
    import torch

    from normless.probes import logits_of, preserve_state

    with preserve_state(network, training=True), torch.no_grad():
        logits = logits_of(network(*positional, **named))
    if logits is None or logits.dim() < 2:
        raise ValueError(
            f"Expected logits of shape (…, classes) from {type(network).__name__}, got "
            f"{'no tensor' if logits is None else tuple(logits.shape)}; measure it from Python, with a loss of yours."
        )
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(logits.shape[-1], logits.shape[:-1], generator=generator)
