"""The probe artefacts of Understanding BN: their draws, passes and updates, by hand and where nothing is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from normless_papers.artefact import Context
from normless_papers.understanding_bn import single_updates
from normless_papers.understanding_bn.initializations import Initializations

TINY: dict[str, Any] = {"data": "correlated(image_shape=(3, 8, 8), train=64, test=8)", "batch_size": 4, "draws": 2}


def test_draws_share_their_minibatches_and_depend_on_the_seed_alone(context: Context) -> None:
    setting = Initializations(context, **TINY, depth=8)
    first, again = list(setting.each()), list(setting.each())
    assert [(draw.number, draw.batch_norm) for draw in first] == [(0, False), (0, True), (1, False), (1, True)]
    for draw, other in zip(first, again, strict=True):
        assert torch.equal(draw.inputs, other.inputs)
        assert all(map(torch.equal, draw.model.parameters(), other.model.parameters()))
        assert any(isinstance(module, nn.BatchNorm2d) for module in draw.model.modules()) == draw.batch_norm
    assert torch.equal(first[0].inputs, first[1].inputs)
    assert not torch.equal(first[0].inputs, first[2].inputs)


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        # log-linear between 1e-4 (a tenth of the start) and 1e-2 (ten times it).
        ([2.0, 1.9, 0.2, 20.0, np.inf], 1e-3),
        ([2.0, 1.9, 0.2, np.inf, np.nan], 1e-4),
        ([2.0, 3.0, 4.0, 5.0, np.inf], 1e-6),
        ([2.0, 1.9, 1.8, 1.0, 0.5], 1.0),
    ],
)
def test_the_longest_useful_step_is_where_the_loss_is_as_large_as_at_the_start(
    losses: list[float], step: float
) -> None:
    rows = pd.DataFrame({"point": [0.0, 1e-6, 1e-4, 1e-2, 1.0], "loss": losses})
    assert single_updates._longest_useful_step(rows) == pytest.approx(step)
