"""What training artefacts ask for: the published numbers of runs, shared between artefacts.

What trainings have at the paper's budget else stands on the page of protocols, beside the words of the texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from papers_helpers import assert_whole, checked
from papers_runs import End, FakeLaboratory, Optimum, asked_for, invented, made_up
from worlds.de_smith_batches import as_said

from normless_lab.sweeps import Point, RateGrid
from normless_papers.artefact import Budget, Context, artefact_of
from normless_papers.budgets import BUDGETS
from normless_papers.experiments.de_smith import rates_at
from normless_papers.experiments.effort import Effort
from normless_papers.experiments.protocol import asked_by

# Of Bjorck et al.: configurations × rates × repetitions, in one sweep.
BJORCK = {
    "figure-1": 4 * 5,
    "bn-on-top": 3 * 5,
    "figure-15": 3 * 5,
    "figure-16": 3 * 5,
    "table-2": 7 * 9 * 5,
    "figure-17": 7 * 9 * 5,
    "experimental-setup": 2 * 9 * 5,
    "table-3": 6 * 9 * 5,
    "warm-start": 3 * 9 * 5,
    "alternating-normalization": 2 * 9 * 5,
}
# Of Zhang et al.: the runs of every sweep.
FIXUP = {
    "table-1": [2 * 5, 5 * 5],
    "figure-4": [6 * 5],
    "figure-3": [4 * 5] * 5 + [4 * 3],
    "rule-2": [6 * 5] * 5 + [6 * 3],
    "sqrt2-scaling": [3 * 5] * 4,
    "lsuv": [3 * 5] * 4,
    "table-4": [2 * 5, 2 * 5],
    "table-2": [5, 4, 3],
    "figure-5": [3],
    "figure-6": [3],
    "scalar-lr": [2],
}
# What the baselines measure beside their runs, made small.
MEASURED: dict[str, dict[str, Any]] = {
    "sqrt2-scaling": {"blocks": 4, "width": 50, "draws": 2, "depth": 10, "images": 2, "shown": "digits"},
    "lsuv": {"depth": 10, "images": 16, "shown": "digits"},
}


def hashes_of(laboratory: FakeLaboratory) -> set[str]:
    return {config.hash for config in laboratory.configs}


def test_bjorcks_artefacts_have_the_published_numbers_of_runs_and_share_them(context: Context) -> None:
    asked = {name: asked_for(f"understanding-bn/{name}", replace(context, budget="paper")) for name in BJORCK}
    hashes = {name: hashes_of(laboratory) for name, laboratory in asked.items()}
    assert {name: len(laboratory.points) for name, laboratory in asked.items()} == BJORCK
    assert {name: len(own) for name, own in hashes.items()} == BJORCK
    assert hashes["bn-on-top"] == hashes["figure-15"]
    assert len(hashes["figure-1"] & hashes["bn-on-top"]) == 2 * 5
    assert hashes["experimental-setup"] < hashes["table-2"] == hashes["figure-17"]
    assert hashes["warm-start"] < hashes["table-3"]


def fixup_ends(labels: Mapping[str, str], point: Point) -> End:
    """Everything trains to 60 %, but deep networks without rule 2 and ten times the scale diverge."""
    config = point.config.to_dict()
    scheme, model = config["scheme"], config["model"]
    deep = "depth=10," not in model and "wide_resnet" in model
    fails = deep and scheme in ("sqrt2", "lsuv", "none", "fixup(rescale=False)")
    if fails or "gain=10" in scheme or (scheme == "xavier" and point.rate >= 0.01):
        return End(None)
    return End({"batch_norm": 62.0, "xavier": 50.0}.get(scheme, 60.0))


def fixup_runs(name: str) -> tuple[Any, FakeLaboratory]:
    context, laboratory = made_up(fixup_ends)
    found = artefact_of(f"fixup/{name}")
    return found.function(context, **{**found.settings["paper"], **MEASURED.get(name, {})}), laboratory


@pytest.mark.parametrize("name", FIXUP)
def test_fixups_runs_have_the_published_numbers(name: str) -> None:
    evidence, laboratory = fixup_runs(name)
    assert [len(sweep.points()) for sweep in laboratory.sweeps] == FIXUP[name]
    assert len(hashes_of(laboratory)) == sum(FIXUP[name])
    # Numbers of other papers are not measured.
    rows = [row for row in artefact_of(f"fixup/{name}").published.rows if str(row.get("method")).startswith("(")]
    others = tuple("/".join(str(row[key]) for key in evidence.on) for row in rows)
    assert_whole(f"fixup/{name}", checked(f"fixup/{name}", evidence), unmeasured=others)


@pytest.mark.parametrize("name", ["sqrt2-scaling", "lsuv", "rule-2"])
def test_runs_that_figure_3_has_too_are_the_same_runs(name: str) -> None:
    own = hashes_of(fixup_runs("figure-3")[1])
    shared = [point for point in fixup_runs(name)[1].points if point.config.hash in own]
    assert {"BatchNorm", "Fixup"} <= {point.labels["method"] for point in shared}


def test_table_3_of_fixup_trains_two_texts_with_and_without_norms() -> None:
    context, laboratory = made_up(lambda labels, _: End(70.0, bleu=34.0, chance=5.0))
    found = artefact_of("fixup/table-3")
    evidence = checked("fixup/table-3", found.function(context, **found.settings["paper"]))
    configs = [point.config.to_dict() for point in laboratory.points if point.seed == 0]
    assert [(config["data_root"], config["scheme"]) for config in configs] == [
        (f"texts/{text}", scheme) for text in ("iwslt14_de_en", "wmt16_en_de") for scheme in ("layer_norm", "fixup")
    ]
    deng, vaswani = "(Deng et al. 2018), with normalization", "(Vaswani et al. 2017), with normalization"
    elsewhere = (f"iwslt_de_en/{deng}", f"wmt_en_de/{vaswani}")
    assert len(assert_whole("fixup/table-3", evidence, unmeasured=elsewhere)) == 6


def anything(metric: str, labels: Mapping[str, str]) -> Optimum:
    return Optimum(90.0)


def test_de_and_smiths_tables_have_the_published_runs_and_share_them() -> None:
    hashes = {}
    for table in ("skipinit/table-1", "skipinit/table-3", "skipinit/table-5", "zeroinit/table-2", "zeroinit/table-3"):
        _, laboratory = invented(table, anything)
        (sweep,) = laboratory.sweeps
        effort = artefact_of(table).settings["paper"]["effort"]
        assert (effort.replicates, effort.best, sweep.replicates) == (15, 12, 4)
        hashes[table] = {point.config.hash for point in sweep.points()}
        assert len(hashes[table]) == len(sweep.combinations) * 7 * 4
    assert len(hashes["skipinit/table-1"]) == 6 * 3 * 7 * 4
    assert hashes["skipinit/table-1"] == hashes["skipinit/table-3"]
    assert not hashes["skipinit/table-1"] & hashes["skipinit/table-5"]
    # Batch norm of one and the multiplier of the other are runs of the SkipInit table.
    assert len(hashes["zeroinit/table-2"] & hashes["skipinit/table-1"]) == 3 * 7 * 4
    assert len(hashes["zeroinit/table-3"] & hashes["skipinit/table-1"]) == 2 * 3 * 7 * 4


PARTS: list[tuple[str, str, dict[str, Any]]] = [
    ("skipinit/skipinit", "skipinit/table-1", {"depth": 10}),
    ("zeroinit/zeroinit", "zeroinit/table-2", {"depth": 10, "draws": 20}),
    ("zeroinit/l2-dominates-initial-loss", "zeroinit/table-3", {"depths": (10, 16), "images": 2, "draws": 1}),
]


@pytest.mark.parametrize(("name", "table", "small"), PARTS)
@pytest.mark.parametrize("budget", ["smoke", pytest.param("paper", marks=pytest.mark.slow)])
def test_what_a_method_trains_are_runs_of_the_table(name: str, table: str, small: Any, budget: Budget) -> None:
    _, own = invented(name, anything, budget, **small)
    _, whole = invented(table, anything, budget)
    # Batch norm, as a control, is a run of another table.
    own_methods = {point.config.hash for point in own.points if point.labels.get("method") != "batch_norm"}
    assert own_methods
    assert own_methods <= hashes_of(whole)


def test_runs_are_shared_between_figures_over_batch_sizes() -> None:
    names = ("zeroinit/figure-1", "zeroinit/figure-3", "skipinit/figure-4")
    ghost, whole, skipinit = (invented(name, as_said, batch_sizes=(16, 64, 128))[1] for name in names)

    def hashes(laboratory: FakeLaboratory, scheme: str) -> set[str]:
        configs = laboratory.configs
        return {config.hash for config in configs if config.to_dict()["scheme"].partition("(")[0] == scheme}

    assert hashes(ghost, "none") & hashes(whole, "none")
    # Batches of at most 64 have no ghosts.
    assert hashes(ghost, "batch_norm") & hashes(whole, "batch_norm")
    assert hashes(skipinit, "zeroinit") == hashes(whole, "zeroinit")
    assert hashes(skipinit, "batch_norm") == hashes(whole, "batch_norm")


POWERS = st.lists(st.integers(-9, 3), min_size=2, max_size=8, unique=True).map(sorted)


@given(POWERS, st.integers(0, 13))
def test_rates_reach_from_the_optimum_at_64_to_that_of_the_batch(exponents: list[int], power: int) -> None:
    rates = RateGrid(tuple(2.0**exponent for exponent in exponents), 2.0)
    held = [math.log2(rate) for rate in rates_at(Effort(data="cifar10", rates=rates), 2**power).rates]
    assert held == sorted(set(held))
    moved = {exponent + power - 6 for exponent in exponents}
    between = range(max(exponents), min(moved))
    assert moved <= set(held) <= moved | set(exponents) | set(between)
    assert power < 6 or set(exponents) <= set(held)


def configs_of(name: str, budget: Budget = "paper") -> list[dict[str, Any]]:
    return [asked.config.to_dict() for asked in asked_by(name, budget)]


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_warm_start_is_batch_norms_alone_and_fixups_scalars_have_a_tenth_of_the_rate(budget: Budget) -> None:
    """He et al. 2016, section 4.2, of their network, which has batch norm; it kills Fixup, and Xavier has none.

    On ImageNet Fixup's scalars have a tenth of the rate, as in the authors' code; those of ZeroInit have it all.
    """
    starts = {config["scheme"]: config["warm_start_epochs"] for config in configs_of("fixup/table-1", budget)}
    # ResNet-20, of smoke and cpu, needs none.
    assert starts == {"batch_norm": int(budget not in ("smoke", "cpu")), "fixup": 0, "xavier": 0}
    for name in ("zeroinit/table-4", "zeroinit/table-5", "skipinit/table-7"):
        scales = {config["scheme"]: config["scalar_rate_scale"] for config in configs_of(name, budget)}
        assert scales.pop("fixup") == 0.1
        assert set(scales.values()) == {1.0}


@pytest.mark.parametrize("name", ["skipinit/table-1", "skipinit/table-3", "zeroinit/table-2"])
@pytest.mark.parametrize(("budget", "extensions"), [("small", 2), ("paper", 8)])
def test_rates_of_the_depth_tables_extend_far_below_the_grid(name: str, budget: Budget, extensions: int) -> None:
    """Two cores have time for two rates beyond either end."""
    assert {(asked.rates.factor, asked.rates.extensions) for asked in asked_by(name, budget)} == {(2.0, extensions)}
