"""The probe artefacts of Understanding BN: their draws, passes and updates, by hand and where nothing is known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from papers_helpers import carried_out, verdict_of
from torch import nn

from normless_papers.artefact import Context
from normless_papers.claims import stated
from normless_papers.probes import find_divergence
from normless_papers.understanding_bn import architecture_rates, initializations, single_updates
from normless_papers.understanding_bn.channels_and_classes import _favourite
from normless_papers.understanding_bn.initializations import Initializations, Measured, conv_path
from normless_papers.understanding_bn.single_updates import Divergence

TINY: dict[str, Any] = {"data": "correlated(image_shape=(3, 8, 8), train=64, test=8)", "batch_size": 4, "draws": 2}


def test_layers_are_counted_from_the_stem() -> None:
    paths = ["blocks.0.conv1", "blocks.0.conv2", "blocks.8.conv1", "blocks.53.conv2"]
    assert [conv_path(layer) for layer in (2, 3, 18, 109)] == paths


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


def test_the_favourite_is_the_class_with_the_largest_bias_gradient() -> None:
    probabilities, targets = np.array([[0.1, 0.8, 0.1], [0.2, 0.7, 0.1]]), np.eye(3)[[1, 0]]
    gradient = probabilities - targets
    by_class = pd.DataFrame({"class": range(3), "predicted_share": [0.0, 1.0, 0.0]})
    by_class = by_class.assign(bias_gradient=gradient.mean(0), mean_abs_gradient=np.abs(gradient).mean(0))
    by_example = pd.DataFrame({"example": np.repeat([0, 1], 3), "class": [0, 1, 2] * 2, "gradient": gradient.ravel()})
    row = _favourite(by_class, by_example.assign(is_target=targets.ravel() > 0)).iloc[0]
    assert row["class"] == 1
    assert row["column_mean"] == pytest.approx(0.7)
    assert row["bias_gradient"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("upper_end", "lower_end", "verdict"), [(1e5, 2.0, "holds"), (5.0, 2.0, "fails"), (1e5, 50.0, "fails")]
)
def test_moments_along_a_path_by_hand(upper_end: float, lower_end: float, verdict: str) -> None:
    ends = {"lower": lower_end, "upper": upper_end}
    rows = [
        {"point": point, "order": order, "abs_mean": value, "variance": value}
        for part, (first, last) in single_updates._PARTS.items()
        for order in range(first, last + 1)
        for point, value in ((0.0, 1.0), (0.5, 1.1), (1.0, ends.get(part, 1.0)))
    ]
    table = single_updates._by_part(pd.DataFrame(rows))
    assert verdict_of(single_updates._figure_6(Divergence(3, 20, (1, 1, 1), (table,) * 3))) == verdict


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


def test_only_draws_below_the_limit_can_fail_to_diverge() -> None:
    """Of five draws two start above it, two diverge by an update, and one does not diverge."""
    four = Divergence(5, 20, (0, 3, 0, 1), ()).diverges()
    assert (four.verdict, four.numbers["draws"]) == ("inconclusive", 3)
    assert four.numbers["share_of_draws"] == pytest.approx(2 / 3)
    assert Divergence(4, 20, (0, 3, 0, 1), ()).diverges().verdict == "holds"


def test_networks_above_the_limit_at_their_start_have_no_largest_rate() -> None:
    rows = [
        {"batch_norm": kind, "draw": draw, "largest": rate, "smallest_diverging": 2 * rate}
        | {"first_stable": rate > 0, "ten_diverged": True}
        for draw, low in enumerate((0.0, 1e-4, 1e-4))
        for kind, rate in ((False, low), (True, 1.0))
    ]
    rates = architecture_rates._stable_rates(Measured(pd.DataFrame(rows)))
    assert rates["does not diverge, without batch norm"] == pytest.approx(1e-4)
    assert rates["share of draws without batch norm that diverge before the first step"] == pytest.approx(1 / 3)
    assert rates["log10 of the ratio of the rates that do not diverge"].mean == pytest.approx(4)  # type: ignore[union-attr]
    checks = stated(architecture_rates._maximal_learning_rate(Measured(pd.DataFrame(rows[:2]))))
    assert [check.verdict for check in checks] == ["holds", "holds", *["inconclusive"] * 3]
