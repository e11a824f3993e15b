"""Networks by the papers' schemes, and networks and batches that are determined by an artefact's seed.

Schemes as the papers print them, on weights initialized as their texts say.

The conversions' `keep_scale`, which would rescale those weights, is turned off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

import normless
from normless.models import build_model
from normless.state import preserve_random_state
from normless_lab.data import Augmentation, load_data
from normless_papers.kept_scale import without_kept_scale

if TYPE_CHECKING:
    from normless_papers.context import Context


Net = TypeVar("Net", bound=nn.Module)


def convert(model: Net, scheme: str, *inputs: Any) -> Net:
    """Convert a network by a scheme as printed."""
    return normless.convert(model, without_kept_scale(scheme), *inputs)


def axes_as_printed(axes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the axes of a sweep with their schemes as printed."""
    return {
        axis: {
            label: {
                name: without_kept_scale(value) if name == "scheme" else value for name, value in settings.items()
            }
            for label, settings in labels.items()
        }
        for axis, labels in axes.items()
    }


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator in the body, and restore its state afterwards."""
    with preserve_random_state():
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class MeasuredBatch:
    """Training examples without augmentation, normalized as for training: images (B, C, H, W) and classes (B,)."""

    inputs: Tensor
    targets: Tensor
    classes: int
    provenance: str

    def network(self, model: str) -> nn.Module:
        """Build a network, given as text, for these inputs and classes."""
        shape = tuple(self.inputs.shape[1:])
        return build_model(model, classes=self.classes, image_shape=shape)  # type: ignore[arg-type]


def training_batch(context: Context, default: str, size: int, *, epoch: int = 0) -> MeasuredBatch:
    """Load the first `size` examples of an epoch of the user's data set, or the default one, shuffled by the seed."""
    name = context.data_or(default)
    data = load_data(name, root=context.data_root)
    count = min(size, data.train_size)
    batch = next(iter(data.train_batches(count, seed=context.seed, epoch=epoch, augmentation=Augmentation())))
    provenance = f"{count} training examples of {name} ({data.provenance})"
    return MeasuredBatch(batch.inputs.float(), batch.targets, data.classes, provenance)


def noise_batch(context: Context, side: int, examples: int) -> MeasuredBatch:
    """Make images of 3 channels of independent N(0, 1)."""
    return training_batch(context, f"gaussian(image_shape=(3, {side}, {side}), train={examples})", examples)
