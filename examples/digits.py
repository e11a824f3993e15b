"""The images of the examples: 1437 and 360 handwritten digits as 3×32×32, which are part of normless."""

from __future__ import annotations

from torch.utils.data import TensorDataset

from normless_lab.data import Augmentation, load_data


def digits(examples: int | None = None) -> tuple[TensorDataset, TensorDataset]:
    """Return the training and test set, each image with its label, and at most `examples` of each if given."""
    data = load_data("digits(side=32)")
    data = data.subset(train=examples, test=None if examples is None else min(examples, data.test_size))
    (train,) = data.train_batches(data.train_size, seed=0, epoch=0, augmentation=Augmentation())
    (test,) = data.test_batches(data.test_size)
    return tuple(TensorDataset(batch.inputs.expand(-1, 3, -1, -1), batch.targets) for batch in (train, test))
