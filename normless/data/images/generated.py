"""Image sets that are drawn and not read: whatever the pixels are, labels are uniformly random."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normless.data.images.augmentation import Augmentation
from normless.data.images.image_data import ImageData
from normless.data.images.tensor_images import Split, Splits, TensorImages


def generated(
    name: str,
    source: str,
    draw: Callable[[int, torch.Generator], Tensor],
    statistics: Callable[[Tensor], tuple[Tensor, Tensor]],
    *,
    classes: int,
    train: int,
    test: int,
    seed: int,
) -> ImageData:
    """Draw a training and a test set; first the pixels and then the labels of each, from one generator.

    Args:
        name: of the data set.
        source: what the pixels are, in words.
        draw: given a count and what is drawn from, the pixels (count, ...), float32.
        statistics: given the training pixels, the mean and standard deviation of each channel to normalize by.
        classes: labels are 0 to classes - 1.
        train: images to learn from.
        test: images to test on.
        seed: of all of it.

    Raises:
        ValueError: a count is no whole number from 1.
    """
    for what, count in (("classes", classes), ("train", train), ("test", test)):
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{what} of {name} is a whole number from 1, got {count!r}.")
    generator = torch.Generator().manual_seed(seed)
    splits = Splits(
        *(
            Split(draw(count, generator), torch.randint(classes, (count,), generator=generator))
            for count in (train, test)
        )
    )
    return TensorImages(
        splits,
        name=name,
        classes=classes,
        source=f"{source}, random labels, seed {seed}",
        default_augmentation=Augmentation(),
        statistics=statistics(splits.train.images),
    )


def checked_shape(name: str, image_shape: Sequence[int], lengths: dict[int, str]) -> tuple[int, ...]:
    """The shape of an example, if it is one of those that a data set can have.

    Args:
        name: of the data set.
        image_shape: what was asked for.
        lengths: what a shape of so many lengths is called.

    Raises:
        ValueError: it has another number of lengths, or one that is not positive.
    """
    whole = isinstance(image_shape, Sequence) and all(isinstance(n, int) and n >= 1 for n in image_shape)
    if not whole or len(image_shape) not in lengths:
        raise ValueError(f"image_shape of {name} is {' or '.join(lengths.values())}, got {image_shape!r}.")
    return tuple(image_shape)
