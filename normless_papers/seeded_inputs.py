"""Networks and batches that an artefact's seed decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from normless.data import Augmentation, load_data
from normless.models import build_model

if TYPE_CHECKING:
    from normless_papers.artefact import Context


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start torch's CPU generator at `seed` in the body, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class MeasuredBatch:
    """Training examples without augmentation, normalized as for training.

    Attributes:
        inputs: shape (B, C, H, W), float32.
        targets: classes, shape (B,).
        classes: of the data set.
        provenance: of the data set, and the number of examples.
    """

    inputs: Tensor
    targets: Tensor
    classes: int
    provenance: str

    def network(self, model: str) -> nn.Module:
        """A network, given as text, for inputs and classes of these."""
        shape = tuple(self.inputs.shape[1:])
        return build_model(model, classes=self.classes, image_shape=shape)  # type: ignore[arg-type]


def training_batch(context: Context, default: str, size: int, *, epoch: int = 0) -> MeasuredBatch:
    """The first batch of an epoch of the user's data set.

    Args:
        context: whose seed shuffles the examples.
        default: the data set as text, if the user names none.
        size: the number of examples; all of a smaller training set.
        epoch: another epoch is another batch.
    """
    name = context.data_or(default)
    data = load_data(name, root=context.data_root)
    count = min(size, data.train_size)
    batch = next(iter(data.train_batches(count, seed=context.seed, epoch=epoch, augmentation=Augmentation())))
    provenance = f"{count} training examples of {name} ({data.provenance})"
    return MeasuredBatch(batch.inputs.float(), batch.targets, data.classes, provenance)


def noise_batch(context: Context, side: int, examples: int) -> MeasuredBatch:
    """Images of 3 channels of independent N(0, 1)."""
    return training_batch(context, f"gaussian(image_shape=(3, {side}, {side}), train={examples})", examples)
