from __future__ import annotations

from typing import Any

from scipy import stats

from normless_lab.data._augmentation import Augmentation, draw_epoch


def test_draws_follow_their_distributions() -> None:
    everything = Augmentation(crop=2, flip=True, cutout=3, mixup=0.7)
    draws: Any = draw_epoch(0, 0, examples=4000, image_shape=(3, 8, 10), augmentation=everything)
    assert draws.shift.unique().tolist() == [0, 1, 2, 3, 4]
    assert draws.hole[:, 0].unique().tolist() == list(range(8))
    assert draws.hole[:, 1].unique().tolist() == list(range(10))
    for axis in (0, 1):
        for values in (draws.shift[:, axis], draws.hole[:, axis]):
            assert stats.chisquare(values.bincount().numpy()).pvalue > 1e-4
    assert stats.binomtest(int(draws.flip.sum()), len(draws.flip)).pvalue > 1e-4
    assert stats.kstest(draws.weight.double().numpy(), stats.beta(0.7, 0.7).cdf).pvalue > 1e-4
