"""Artefacts about γ's own learning rate, its groups and presets, and figure 5."""

from __future__ import annotations

import pandas as pd
import pytest
from papers_helpers import assert_whole, carried_out

from normless_papers.artefact import Context, Evidence, artefact_of


def test_groups_partition_all_gammas(context: Context) -> None:
    evidence = carried_out("gamma/parameter-groups", context)
    assert_whole("gamma/parameter-groups", evidence)
    assert {check.verdict for check in evidence.checks} == {"holds"}
    table = evidence.measured.set_index("model")
    names = ["gamma_last", "gamma_down", "gamma_0", "gamma_others"]
    assert table.loc["normless:resnet(depth=18, channels=8)", names].tolist() == [8, 3, 1, 8]
    assert table[names].sum(axis=1).tolist() == table["batch_norms"].tolist()
    paper = artefact_of("gamma/parameter-groups").settings["paper"]["models"]
    assert len(paper) == 10


@pytest.mark.slow
def test_figure_5_is_measured_on_a_network_trained_here(context: Context) -> None:
    settings = {"epochs": 1, "batch_size": 64, "rate": 0.05, "schedule": "cosine"}
    model = "normless:resnet(depth=50, channels=2)"
    changes = {"model": model, "data": "digits(train=128)", "training": settings, "replicates": 1}
    evidence = carried_out("gamma/figure-5", context, **changes)
    assert_whole("gamma/figure-5", evidence)
    assert evidence.measured["block"].tolist()[:4] == ["1-0", "1-1", "1-2", "2-0"]
    assert len(evidence.measured) == 16
    # An epoch of two minibatches teaches nothing, and decides nothing.
    assert {check.verdict for check in evidence.checks} == {"inconclusive"}


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
        return [check.verdict for check in artefact_of("gamma/figure-5").checks_of(Evidence(table, facts))]

    assert verdicts(table) == ["holds"] * 5
    rising = table.copy()
    rising.loc[rising["block"] == "2-3", "variance"] = 1.4
    assert verdicts(rising) == ["holds", "holds", "fails", "holds", "holds"]
    rising.loc[rising["block"] == "3-0", "variance"] = 1.1
    assert verdicts(rising) == ["holds", "holds", "fails", "fails", "holds"]
    assert verdicts(table, table, rising) == ["holds", "holds", "inconclusive", "inconclusive", "holds"]
