from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from normless_lab.data.epoch_randomness import Draws, draw_epoch
from normless_lab.data.images.augmentation import Augmentation

EVERYTHING = Augmentation(crop=2, flip=True, cutout=3, mixup=0.7)


def drawn(seed: int = 0, epoch: int = 0, augmentation: Augmentation = EVERYTHING, examples: int = 4000) -> Draws:
    return draw_epoch(seed, epoch, examples=examples, image_shape=(3, 8, 10), augmentation=augmentation)


@pytest.mark.parametrize("other", [(0, 0), (1, 1), (1, 0), (2, 1)])
def test_other_seed_or_epoch_draws_differently_in_everything(other: tuple[int, int]) -> None:
    first, second = drawn(0, 1), drawn(*other)
    for name in Draws._fields:
        assert not torch.equal(getattr(first, name), getattr(second, name)), name


def test_draws_follow_their_distributions() -> None:
    draws: Any = drawn()
    assert draws.shift.unique().tolist() == [0, 1, 2, 3, 4]
    assert draws.hole[:, 0].unique().tolist() == list(range(8))
    assert draws.hole[:, 1].unique().tolist() == list(range(10))
    for axis in (0, 1):
        for values in (draws.shift[:, axis], draws.hole[:, axis]):
            assert stats.chisquare(values.bincount().numpy()).pvalue > 1e-4
    assert stats.binomtest(int(draws.flip.sum()), len(draws.flip)).pvalue > 1e-4
    assert stats.kstest(draws.weight.double().numpy(), stats.beta(0.7, 0.7).cdf).pvalue > 1e-4


def test_global_generators_are_neither_read_nor_changed() -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global generator is what is tested
    before, before_numpy = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    first = drawn()
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_equal(np.random.get_state(), before_numpy)  # noqa: NPY002
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    assert torch.equal(drawn().order, first.order)
