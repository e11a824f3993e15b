"""Artefacts about γ's own learning rate, its groups and presets, and figure 5."""

from __future__ import annotations

import pandas as pd
import pytest
from papers_helpers import assert_finite, assert_whole, carried_out, check_of
from torch import nn

from normless_papers.artefact import Context, Evidence, artefact_of
from normless_papers.gamma import parameter_groups, rate

TINY = "normless:resnet(depth=18, channels=8)"
NOISE = "gaussian(image_shape=(3, 32, 32), train=16)"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gamma/equation-22", {"model": TINY, "factors": (0.5, 3.0)}),
        ("gamma/equation-24", {"model": TINY}),
    ],
)
def test_it_holds_for_gammas_within_branches(name: str, changes: dict[str, object], context: Context) -> None:
    evidence = carried_out(name, context, **changes)
    assert_whole(name, evidence)
    assert {one.verdict for one in evidence.checks} == {"holds"}
    assert set(evidence.measured["gamma"]) >= {"stem", "down", "other", "last"}
    assert_finite(evidence.measured.select_dtypes("number").to_numpy().ravel())


def test_the_slope_is_told_for_each_role(context: Context) -> None:
    changes = {"model": TINY, "data": NOISE, "batches": 3, "examples": 16}
    evidence = carried_out("gamma/figure-6", context, **changes)
    assert_whole("gamma/figure-6", evidence)
    assert check_of(evidence, "γ_other").verdict == "holds"
    # The size of γ_last decides how much of the stream its branch is.
    assert check_of(evidence, "γ_last").verdict == "fails"
    assert len(evidence.checks) == 4


def test_norms_that_do_not_normalize_fail(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a large ε in the norm after it γ of a branch is not scale invariant."""
    original = rate._in_float64

    def with_epsilon(*arguments: object) -> nn.Module:
        network = original(*arguments)  # type: ignore[arg-type]
        for path, module in network.named_modules():
            if path.endswith("bn2"):
                module.eps = 10.0  # type: ignore[assignment]
        return network

    monkeypatch.setattr(rate, "_in_float64", with_epsilon)
    evidence = carried_out("gamma/equation-24", context, model=TINY, scales=(0.5, 2.0))
    assert check_of(evidence, "times one gradient").verdict == "fails"
    assert check_of(evidence, "logarithmic slope").verdict == "fails"


def test_groups_partition_all_gammas(context: Context) -> None:
    evidence = carried_out("gamma/parameter-groups", context)
    assert_whole("gamma/parameter-groups", evidence)
    assert {one.verdict for one in evidence.checks} == {"holds"}
    table = evidence.measured.set_index("model")
    names = ["gamma_last", "gamma_down", "gamma_0", "gamma_others"]
    assert table.loc["normless:resnet(depth=18, channels=8)", names].tolist() == [8, 3, 1, 8]
    assert table[names].sum(axis=1).tolist() == table["batch_norms"].tolist()
    paper = artefact_of("gamma/parameter-groups").settings["paper"]["models"]
    assert len(paper) == 10


def test_a_gamma_in_another_group_is_noticed(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    original = parameter_groups._role_by_name
    monkeypatch.setattr(
        parameter_groups, "_role_by_name", lambda network, path: "other" if path == "bn1" else original(network, path)
    )
    evidence = carried_out("gamma/parameter-groups", context, models=(TINY,))
    assert check_of(evidence, "block diagrams give it").verdict == "fails"


def test_presets_say_what_the_table_says(context: Context) -> None:
    evidence = carried_out("gamma/table-1", context)
    merged = assert_whole("gamma/table-1", evidence)
    assert {one.verdict for one in evidence.checks} == {"holds"}
    row = merged[merged["parameter"] == "gamma_down"].iloc[0]
    assert (row["pytorch_measured"], row["guidelines_measured"]) == ("applied", "not applied")


def test_a_policy_that_decays_too_much_is_noticed(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        parameter_groups, "POLICIES", {"tensorflow": "weights", "pytorch": "all", "guidelines": "guidelines+down"}
    )
    evidence = carried_out("gamma/table-1", context)
    assert check_of(evidence, "column guidelines").verdict == "fails"


def test_figure_5_is_measured_on_a_network_trained_here(context: Context) -> None:
    settings = {"epochs": 1, "batch_size": 64, "rate": 0.05, "schedule": "cosine"}
    model = "normless:resnet(depth=50, channels=2)"
    changes = {"model": model, "data": "digits(train=128)", "training": settings, "replicates": 1}
    evidence = carried_out("gamma/figure-5", context, **changes)
    assert_whole("gamma/figure-5", evidence)
    assert evidence.measured["block"].tolist()[:4] == ["1-0", "1-1", "1-2", "2-0"]
    assert len(evidence.measured) == 16
    # An epoch of two minibatches teaches nothing, and decides nothing.
    assert {one.verdict for one in evidence.checks} == {"inconclusive"}


def test_the_pattern_of_figure_5_is_told_from_others() -> None:
    stages = {1: [1.0, 0.6, 0.5], 2: [2.0, 1.5, 1.2, 1.0], 3: [3.0, 2.0, 1.0], 4: [4.0, 3.0, 2.0]}
    rows = [
        {"block": f"{stage}-{index}", "stage": stage, "index": index, "variance": value}
        for stage, values in stages.items()
        for index, value in enumerate(values)
    ]
    table = pd.DataFrame(rows)

    def verdicts(*tables: pd.DataFrame) -> list[str]:
        facts = (tables, 0.95, 0.1)
        return [one.verdict for one in artefact_of("gamma/figure-5").checks_of(Evidence(table, facts))]

    assert verdicts(table) == ["holds"] * 5
    rising = table.copy()
    rising.loc[rising["block"] == "2-3", "variance"] = 1.4
    assert verdicts(rising) == ["holds", "holds", "fails", "holds", "holds"]
    rising.loc[rising["block"] == "3-0", "variance"] = 1.1
    assert verdicts(rising) == ["holds", "holds", "fails", "fails", "holds"]
    assert verdicts(table, table, rising) == ["holds", "holds", "inconclusive", "inconclusive", "holds"]
