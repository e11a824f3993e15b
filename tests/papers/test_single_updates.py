"""The probe artefacts of Understanding BN: their draws, passes and updates, by hand and where nothing is known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from papers_helpers import carried_out
from torch import nn

from normless_papers.artefact import Context
from normless_papers.probes import find_divergence
from normless_papers.understanding_bn import initializations, single_updates
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


def test_a_pass_is_made_once_for_all_artefacts(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    observe = initializations.observe
    monkeypatch.setattr(initializations, "observe", lambda *args: (made.append(1), observe(*args)))
    monkeypatch.setattr(initializations, "_passes", {})
    for name in ("figure-2", "figure-7", "table-4"):
        carried_out(f"understanding-bn/{name}", context, **(TINY | {"draws": 1}))
    first = next(Initializations(context, **TINY).each())
    assert initializations.pass_of(first) is initializations.pass_of(first)
    assert len(made) == 2
    other = Initializations(replace(context, seed=1), **TINY)
    assert initializations.pass_of(next(other.each())) is not initializations.pass_of(first)


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


def test_a_draw_above_the_limit_before_the_first_update_has_diverged_and_has_no_path(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    monkeypatch.setattr(single_updates, "find_divergence", partial(find_divergence, limit=0.0))
    evidence = carried_out("understanding-bn/figure-5", context, **TINY, minibatches=2)
    values = evidence.measured.set_index("quantity")["value"]
    assert values["share of draws that diverge by an update"] == 0
    assert values["share of draws with a loss above the threshold before the first update"] == 1
    assert evidence.draw is None
    assert {check.verdict for check in evidence.checks} == {"inconclusive"}
