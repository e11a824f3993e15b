from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, strategies as st

from normless_lab.data._augmentation import crop, cutout, flip, mixup

SIDES = st.integers(1, 9)


@given(height=SIDES, width=SIDES, channels=st.integers(1, 3), padding=st.integers(0, 4), seed=st.integers(0, 99))
def test_crop_equals_padding_and_cutting_each_image(
    height: int, width: int, channels: int, padding: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    images = generator.integers(1, 256, size=(5, channels, height, width), dtype=np.uint8)
    shift = generator.integers(2 * padding + 1, size=(5, 2))
    result = crop(torch.from_numpy(images), torch.from_numpy(shift), padding)
    assert result.dtype == torch.uint8
    for image, (row, column), cropped in zip(images, shift, result.numpy(), strict=True):
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        np.testing.assert_array_equal(cropped, padded[:, row : row + height, column : column + width])


def test_flip_mirrors_the_chosen_only() -> None:
    images = torch.arange(2 * 3 * 2 * 4, dtype=torch.uint8).view(2, 3, 2, 4)
    result = flip(images, torch.tensor([True, False]))
    np.testing.assert_array_equal(result[0].numpy(), images[0].numpy()[:, :, ::-1])
    assert torch.equal(result[1], images[1])


@given(height=SIDES, width=SIDES, side=st.integers(1, 12), seed=st.integers(0, 99))
def test_cutout_zeroes_one_clipped_square_in_all_channels(height: int, width: int, side: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    centre = generator.integers([height, width], size=(4, 2))
    result = cutout(torch.ones(4, 2, height, width), torch.from_numpy(centre), side)
    for (row, column), image in zip(centre, result.numpy(), strict=True):
        expected = np.ones((2, height, width))
        top, left = row - side // 2, column - side // 2
        expected[:, max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = 0
        np.testing.assert_array_equal(image, expected)


@given(size=st.integers(1, 8), classes=st.integers(1, 5), seed=st.integers(0, 99))
def test_mixup_equals_the_mixture_of_each_pair(size: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size + 1, 2, 3, 3, generator=generator)
    labels = torch.randint(classes, (size + 1,), generator=generator)
    weight = torch.rand(size, generator=generator)
    mixed, targets = mixup(images, labels, weight, classes)
    onehot = torch.nn.functional.one_hot(labels, classes).float()
    for i, share in enumerate(weight.tolist()):
        torch.testing.assert_close(mixed[i], share * images[i] + (1 - share) * images[i + 1])
        torch.testing.assert_close(targets[i], share * onehot[i] + (1 - share) * onehot[i + 1])
    torch.testing.assert_close(targets.sum(1), torch.ones(size))
