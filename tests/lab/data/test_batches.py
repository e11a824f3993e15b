from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch

from normless_lab.data import Augmentation, Batch, ImageData, in_memory
from normless_lab.data._image_data import checked_split

NOTHING = Augmentation()
EVERYTHING = Augmentation(crop=2, flip=True, cutout=4, mixup=0.5)


def numbered(train: int = 22, test: int = 7) -> ImageData:
    """Images 2×8×8 of one value each, which tells them apart; the second channel is constant in the whole set."""
    splits = []
    for n in (train, test):
        pixels = np.full((n, 2, 8, 8), 9, np.uint8)
        pixels[:, 0] = np.arange(n)[:, None, None]
        splits.append(checked_split(pixels, np.arange(n) % 3, classes=3, origin="here"))
    return in_memory("numbered", "a test", *splits, classes=3)


def epoch_of(data: ImageData, augmentation: Augmentation = NOTHING, size: int = 11, **how: int) -> list[Batch]:
    return list(data.train_batches(size, augmentation=augmentation, **{"seed": 0, "epoch": 0} | how))


def values(data: ImageData, batches: Iterable[Batch]) -> list[int]:
    """Which image each input is, by its value before normalization."""
    inputs = torch.cat([batch.inputs[:, 0] for batch in batches])
    pixels = (inputs * data.std[0] + data.mean[0]) * 255
    assert torch.allclose(pixels, pixels[:, :1, :1], atol=1e-3)
    return [round(value) for value in pixels[:, 0, 0].tolist()]


def test_every_example_comes_once_in_a_random_order_with_its_label_and_normalized_per_channel() -> None:
    data = numbered()
    batches = epoch_of(data)
    order = values(data, batches)
    assert sorted(order) == list(range(22))
    assert order != sorted(order)
    labels = torch.cat([batch.targets for batch in batches])
    assert labels.dtype == torch.int64
    assert labels.tolist() == [value % 3 for value in order]
    inputs = torch.cat([batch.inputs for batch in batches])
    assert inputs.dtype == torch.float32
    assert inputs[:, 0].mean().item() == pytest.approx(0, abs=1e-5)
    assert inputs[:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert inputs[:, 1].abs().max().item() == pytest.approx(0, abs=1e-5)  # constant, so divided by 1
    assert data.std[1] == 1


@pytest.mark.parametrize("augmentation", [NOTHING, EVERYTHING])
def test_an_epoch_is_a_pure_function_of_seed_and_epoch(augmentation: Augmentation) -> None:
    data = numbered()

    def epoch(seed: int, number: int) -> torch.Tensor:
        return torch.cat([batch.inputs for batch in epoch_of(data, augmentation, seed=seed, epoch=number)])

    first = epoch(0, 1)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    assert torch.equal(epoch(0, 1), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(epoch(1, 0), first)
    assert not torch.equal(epoch(0, 2), first)


def test_crop_pads_with_black_before_normalization_and_cutout_sets_the_mean_after_it() -> None:
    data = numbered()
    black = -data.mean[1] / data.std[1]
    (cropped,), (cut,), (plain,) = (
        epoch_of(data, augmentation, 22) for augmentation in (Augmentation(crop=3), Augmentation(cutout=3), NOTHING)
    )
    assert cropped.inputs[:, 1].unique().tolist() == pytest.approx([black.item(), 0], abs=1e-6)
    assert torch.equal(cut.inputs[cut.inputs != 0], plain.inputs[cut.inputs != 0])
    holes = (cut.inputs[:, 0] == 0).sum((1, 2))
    assert torch.all((holes >= 4) & (holes <= 9))  # a 3×3 square, of which a corner keeps 2×2


def test_the_parts_of_all_processes_are_the_batch_of_one() -> None:
    data = numbered()
    parts = [epoch_of(data, EVERYTHING, 10, rank=rank, world_size=5) for rank in range(5)]
    for whole, *shares in zip(epoch_of(data, EVERYTHING, 10), *parts, strict=True):
        assert torch.equal(whole.inputs, torch.cat([share.inputs for share in shares]))
        assert torch.equal(whole.targets, torch.cat([share.targets for share in shares]))


def test_subset_keeps_proportions_nests_and_says_so() -> None:
    data = numbered(train=60, test=20)
    small, large = data.subset(train=12, test=5), data.subset(train=30)
    assert (small.train_size, small.test_size, large.train_size, large.test_size) == (12, 5, 30, 20)
    assert small.train.labels.bincount().tolist() == [4, 4, 4]
    assert "subset of 12 of 60 train and 5 of 20 test" in small.provenance
    # With the digest of all bytes.
    assert numbered(train=60, test=20).provenance == data.provenance
    other = numbered(train=60, test=20)
    other.test.images[0, 0, 0, 0] += 1
    assert other.provenance != data.provenance
    members, more, again = (
        set(values(part, epoch_of(part, size=99))) for part in (small, large, data.subset(train=12))
    )
    assert members == again < more
    assert torch.equal(small.mean, data.mean)
