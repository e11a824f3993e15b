"""A batch of a data set that an artefact measures a network on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from normless.data import Augmentation, load_data

if TYPE_CHECKING:
    from normless_papers.artefact import Context


@dataclass(frozen=True)
class MeasuredBatch:
    """Training examples without augmentation, normalized as training has them.

    Attributes:
        inputs: shape (B, C, H, W), float32.
        targets: classes, shape (B,).
        classes: of the data set.
        provenance: of the data set, and how many of its examples these are.
    """

    inputs: Tensor
    targets: Tensor
    classes: int
    provenance: str


def training_batch(context: Context, usual: str, size: int, *, epoch: int = 0) -> MeasuredBatch:
    """The first batch of an epoch of the user's data set, or of the budget's.

    Args:
        context: whose seed shuffles the examples.
        usual: the data set as text that is taken unless the user asks for another.
        size: the number of examples; all of a smaller training set.
        epoch: another epoch is another batch.
    """
    name = context.data_or(usual)
    data = load_data(name, root=context.data_root)
    count = min(size, data.train_size)
    batches = data.train_batches(count, seed=context.seed, epoch=epoch, augmentation=Augmentation())
    batch = next(iter(batches))
    return MeasuredBatch(
        batch.inputs.float(), batch.targets, data.classes, f"{count} training examples of {name} ({data.provenance})"
    )
