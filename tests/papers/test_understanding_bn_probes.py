"""The probe artefacts of Understanding BN on tiny inputs, and that their checks can fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from papers_helpers import assert_whole, carried_out, check_of
from torch import nn
from worlds.understanding_bn import WORLDS as UNDERSTANDING_BN

from normless_papers.artefact import Context, artefact_of
from normless_papers.claims import verdict_of
from normless_papers.understanding_bn import initializations, single_updates
from normless_papers.understanding_bn.channels_and_classes import _favourite
from normless_papers.understanding_bn.initializations import Initializations, conv_path

TINY = {"data": "correlated(image_shape=(3, 8, 8), train=64, test=8)", "batch_size": 4, "draws": 2}
LARGER = {"data": "correlated(image_shape=(3, 16, 16))", "batch_size": 16}
IDS = {
    "equation-4": {"layers": (18,), "draws": 1},
    "figure-2": {},
    "figure-3": {},
    "figure-4": {},
    "table-1": {},
    "table-4": {},
    # Smaller images do not make the network diverge.
    "figure-5": {**LARGER, "minibatches": 2, "points": 3, "draws": 1},
    "figure-6": {**LARGER, "minibatches": 2, "points": 3, "draws": 1},
    "figure-7": {},
    "figure-13": {},
    "figure-14": {},
    "figure-18": {"minibatches": 2},
    "figure-19": {},
    "maximal-learning-rate": {"draws": 1, "minibatches": 2},
    "dominating-channels": {},
    "figure-20": {},
    "figure-21": {},
    "figure-22": {},
    "figure-23": {},
    "figure-24": {"draws": 1, "factor": 64.0},
}


@pytest.mark.parametrize("name", IDS)
def test_artefact(name: str, context: Context) -> None:
    changes: Mapping[str, Any] = TINY | {"draws": 1} | IDS[name]
    evidence = carried_out(f"understanding-bn/{name}", context, **changes)
    assert_whole(f"understanding-bn/{name}", evidence)
    assert "ResNet-110" in evidence.setup["network"]
    assert evidence.setup["data"].startswith("correlated: ")
    assert evidence.setup["draws"] == changes["draws"]


@pytest.mark.parametrize("name", IDS)
def test_the_paper_budget_is_the_published_setup(name: str) -> None:
    settings = artefact_of(f"understanding-bn/{name}").settings["paper"]
    assert (settings["data"], settings["batch_size"]) == ("cifar10", 128)
    assert settings["draws"] >= 3


def test_layers_are_counted_from_the_stem() -> None:
    assert [conv_path(layer) for layer in (2, 3, 18, 109)] == [
        "blocks.0.conv1",
        "blocks.0.conv2",
        "blocks.8.conv1",
        "blocks.53.conv2",
    ]
    with pytest.raises(ValueError, match="1 is not"):
        conv_path(1)


def test_draws_share_their_minibatches_and_depend_on_the_seed_alone(context: Context) -> None:
    setting = Initializations(context, **TINY, depth=8)
    first, again = list(setting.each()), list(setting.each())
    assert [(draw.number, draw.batch_norm) for draw in first] == [(0, False), (0, True), (1, False), (1, True)]
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))
    assert torch.equal(first[0].inputs, first[1].inputs)
    assert not torch.equal(first[0].inputs, first[2].inputs)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in first[0].model.modules())
    assert any(isinstance(module, nn.BatchNorm2d) for module in first[1].model.modules())


SWAPPED = MappingProxyType({False: initializations.SCHEMES[True], True: initializations.SCHEMES[False]})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("figure-2", "larger without batch norm, in every draw"),
        ("figure-3", "Without batch norm variance grows"),
        ("figure-4", "is predicted for"),
        ("figure-7", "With batch norm that explains less"),
        ("figure-18", "rises with the mean"),
        ("figure-19", "within an order of magnitude"),
        ("figure-23", "much smaller with batch norm"),
        ("dominating-channels", "Effectively fewer channels"),
    ],
)
def test_with_the_networks_swapped_claims_fail(
    name: str, words: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initializations, "SCHEMES", SWAPPED)
    changes = {"minibatches": 1} if name == "figure-18" else {}
    evidence = carried_out(f"understanding-bn/{name}", context, **(TINY | {"draws": 3} | changes))
    assert verdict_of(evidence.checks) == "fails"
    assert check_of(evidence, words).verdict == "fails"


def test_too_few_summands_are_not_asked_for_as_much_as_the_papers(context: Context) -> None:
    table = UNDERSTANDING_BN["understanding-bn/table-1"].published(context.directory).table
    small = Initializations(context, **TINY, depth=8)
    checks = artefact_of("understanding-bn/table-1").checks(initializations.Measured(table, small.fewer))
    asked = [one for one in checks if "about 10²" in one.claim]
    assert [one.verdict for one in asked] == ["inconclusive"] * 3
    assert all("4 images of 8×8" in one.claim for one in asked)
    assert [one.verdict for one in checks if "random signs" in one.claim] == ["holds"] * 3


def test_only_the_papers_images_and_minibatches_are_not_a_reduction(context: Context) -> None:
    whole = {"data": "correlated(train=128, test=8)", "batch_size": 128, "draws": 1}
    assert Initializations(context, **whole).fewer == ""
    assert Initializations(context, **whole).reduction == "correlated(train=128, test=8) is not CIFAR-10."
    assert "64 images of 32×32" in Initializations(context, **(whole | {"batch_size": 64})).reduction
    assert Initializations(context, **whole, depth=56).fewer


def test_a_pass_is_made_once_for_all_artefacts(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    observe = initializations.observe
    monkeypatch.setattr(initializations, "observe", lambda *args: (made.append(1), observe(*args)))
    monkeypatch.setattr(initializations, "_passes", {})
    for name in ("figure-2", "figure-7", "table-4"):
        carried_out(f"understanding-bn/{name}", context, **(TINY | {"draws": 1}))
    assert len(made) == 2
    first = next(Initializations(context, **TINY).each())
    assert initializations.pass_of(first) is initializations.pass_of(first)
    other = Initializations(replace(context, seed=1), **TINY)
    assert len(made) == 2
    assert initializations.pass_of(next(other.each())) is not initializations.pass_of(first)


def test_the_longest_useful_step_is_where_the_loss_is_as_large_as_at_the_start() -> None:
    points = np.array([0.0, 1e-6, 1e-4, 1e-2, 1.0])
    # log-linear between 1e-4 (a tenth of the start) and 1e-2 (ten times it).
    rows = pd.DataFrame({"point": points, "loss": [2.0, 1.9, 0.2, 20.0, np.inf]})
    assert single_updates._longest_useful_step(rows) == pytest.approx(1e-3)
    rows["loss"] = [2.0, 1.9, 0.2, np.inf, np.nan]
    assert single_updates._longest_useful_step(rows) == pytest.approx(1e-4)
    rows["loss"] = [2.0, 3.0, 4.0, 5.0, np.inf]
    assert single_updates._longest_useful_step(rows) == pytest.approx(1e-6)
    rows["loss"] = [2.0, 1.9, 1.8, 1.0, 0.5]
    assert single_updates._longest_useful_step(rows) == pytest.approx(1.0)


def test_the_favourite_is_the_class_with_the_largest_bias_gradient() -> None:
    probabilities = np.array([[0.1, 0.8, 0.1], [0.2, 0.7, 0.1]])
    targets = np.eye(3)[[1, 0]]
    gradient = probabilities - targets
    by_class = pd.DataFrame(
        {
            "class": range(3),
            "predicted_share": [0.0, 1.0, 0.0],
            "bias_gradient": gradient.mean(0),
            "mean_abs_gradient": np.abs(gradient).mean(0),
        }
    )
    by_example = pd.DataFrame(
        {
            "example": np.repeat([0, 1], 3),
            "class": [0, 1, 2] * 2,
            "gradient": gradient.ravel(),
            "is_target": targets.ravel() > 0,
        }
    )
    row = _favourite(by_class, by_example).iloc[0]
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
    checks = single_updates._figure_6(single_updates.Divergence(3, 20, (1, 1, 1), (table,) * 3))
    assert verdict_of(checks) == verdict


def test_a_moment_that_overflows_has_exploded() -> None:
    moments = pd.Series({0.0: 1.0, 0.5: 100.0, 1.0: np.inf})
    assert single_updates._decades(moments, 0.0, 0.5) == pytest.approx(2)
    assert single_updates._decades(moments, 0.5, 1.0) == np.inf


def test_without_divergence_there_is_nothing_to_follow(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_updates, "RATE", 1e-9)
    for name in ("figure-5", "figure-6"):
        evidence = carried_out(f"understanding-bn/{name}", context, **(TINY | {"minibatches": 2, "points": 3}))
        assert {one.verdict for one in evidence.checks} == {"inconclusive"}
        assert evidence.draw is None
        whole = replace(evidence.facts, reduction="")
        assert whole.diverges().verdict == "fails"
