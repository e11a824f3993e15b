"""What the training artefacts of Understanding BN would run, without running it, and one tiny run of each kind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pandas as pd
import pytest
from fake_laboratory import FakeLaboratory, RequestedError
from papers_helpers import assert_whole, carried_out, check_of, context_in

from normless_lab.sweeps import Laboratory, RateGrid, Sweep
from normless_papers.artefact import Context, artefact_of
from normless_papers.experiments.effort import Effort
from normless_papers.understanding_bn.rate_search import (
    best_decade,
    best_rate,
    highest_achievable_rate,
    highest_decade,
)
from normless_papers.understanding_bn.reference_runs import plateaus

NETWORK = "normless:resnet_cifar(depth=8)"
PROTOCOL = {"momentum": 0.9, "weight_decay": 5e-4, "decay_policy": "all", "schedule": "step"}
TINY = Effort(
    data="digits(train=128, test=60)",
    model=NETWORK,
    epochs=2,
    batch_size=64,
    rates=RateGrid((0.01, 0.1), None),
    settings=PROTOCOL,
    variants={
        "low": {"rate": 0.01, "epochs": 4},
        "middle": {"rate": 0.05, "epochs": 2},
        "high": {"rate": 0.1, "epochs": 2},
        "top": {"rate": 0.05, "epochs": 2},
        "search": {},
        "warm_start": {"warm_start_rate": 1e-4, "warm_start_epochs": 1},
    },
    reduced="ResNet-8.",
)

# Runs of the paper: configurations × rates × repetitions.
COUNTS = {
    "understanding-bn/figure-1": 4 * 5,
    "understanding-bn/bn-on-top": 3 * 5,
    "understanding-bn/figure-15": 3 * 5,
    "understanding-bn/figure-16": 3 * 5,
    "understanding-bn/table-2": 7 * 9 * 5,
    "understanding-bn/figure-17": 7 * 9 * 5,
    "understanding-bn/experimental-setup": 2 * 9 * 5,
    "understanding-bn/table-3": 6 * 9 * 5,
    "understanding-bn/warm-start": 3 * 9 * 5,
    "understanding-bn/alternating-normalization": 2 * 9 * 5,
}


SHARED = (
    *("figure-1", "bn-on-top", "figure-15", "table-2", "figure-17"),
    *("experimental-setup", "table-3", "warm-start"),
)


def runs_of(accuracies: dict[tuple[float, int], float | None]) -> pd.DataFrame:
    """Runs by rate and seed; None diverged."""
    rows = [
        {
            "rate": rate,
            "seed": seed,
            "outcome": "diverged" if accuracy is None else "trained",
            "test_accuracy": math.nan if accuracy is None else accuracy,
            "chance_accuracy": 10.0,
        }
        for (rate, seed), accuracy in accuracies.items()
    ]
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    """One laboratory for all runs of this file: its worker stays warm, and runs that artefacts share run once."""
    context = context_in(tmp_path_factory.mktemp("runs"))
    with context.lab:
        yield context


def sweeps_of(artefact: str, context: Context) -> list[Sweep]:
    lab = FakeLaboratory()
    with pytest.raises(RequestedError):
        carried_out(artefact, replace(context, lab=cast(Laboratory, lab), budget="paper"))
    return lab.sweeps


@pytest.mark.parametrize("artefact", COUNTS)
def test_the_paper_budget_is_the_published_setup(artefact: str, context: Context) -> None:
    (sweep,) = sweeps_of(artefact, context)
    points = sweep.points()
    assert len(points) == len({point.config.hash for point in points}) == COUNTS[artefact]
    for point in points:
        config = point.config.to_dict()
        assert (config["momentum"], config["weight_decay"], config["batch_size"]) == (0.9, 5e-4, 128)
        assert (config["data"], config["schedule"]) == ("cifar10", "step")
        assert "resnet_cifar(depth=" in config["model"]


def test_the_reference_runs_have_the_papers_rates_and_epochs(context: Context) -> None:
    (sweep,) = sweeps_of("understanding-bn/figure-1", context)
    found = {(point.config.to_dict()["scheme"], point.rate, point.config.epochs) for point in sweep.points()}
    norm = "batch_norm(initialization='xavier')"
    assert found == {("xavier", 1e-4, 2400), (norm, 1e-4, 2400), (norm, 3e-3, 1320), (norm, 0.1, 165)}
    (table,) = sweeps_of("understanding-bn/table-2", context)
    config = table.points()[0].config.to_dict()
    assert (config["epochs"], config["epochs_until_plateau"], config["max_doublings"]) == (165, True, 4)


def test_artefacts_share_their_runs(context: Context) -> None:
    hashes = {
        name: {point.config.hash for point in sweeps_of(f"understanding-bn/{name}", context)[0].points()}
        for name in SHARED
    }
    assert hashes["bn-on-top"] == hashes["figure-15"]
    assert len(hashes["figure-1"] & hashes["bn-on-top"]) == 2 * 5
    assert hashes["experimental-setup"] < hashes["table-2"]
    assert hashes["table-2"] == hashes["figure-17"]
    assert hashes["warm-start"] < hashes["table-3"]


def test_the_papers_own_numbers_are_asked_of_its_own_setup_alone(context: Context) -> None:
    paper = artefact_of("understanding-bn/table-2").settings["paper"]["effort"]
    assert paper.reduction(context) == ""
    assert "cifar100" in paper.reduction(replace(context, data="cifar100"))
    assert "ResNet-8" in TINY.reduction(context)


@pytest.mark.parametrize("artefact", ["figure-1", "bn-on-top", "figure-15", "figure-16"])
def test_reference_runs_end_to_end(artefact: str, shared: Context) -> None:
    changes: dict[str, Any] = {"effort": TINY} | ({"batch_size": 4, "draws": 2} if artefact == "bn-on-top" else {})
    evidence = carried_out(f"understanding-bn/{artefact}", shared, **changes)
    assert_whole(f"understanding-bn/{artefact}", evidence)
    assert evidence.setup["model"] == "normless:resnet_cifar(depth=8)"
    assert not [remark for remark in evidence.remarks if "failed" in remark]


@pytest.mark.parametrize("artefact", ["table-2", "figure-17", "experimental-setup"])
def test_parts_end_to_end(artefact: str, shared: Context) -> None:
    evidence = carried_out(f"understanding-bn/{artefact}", shared, effort=TINY)
    merged = assert_whole(f"understanding-bn/{artefact}", evidence)
    assert not [remark for remark in evidence.remarks if "failed" in remark]
    if artefact == "table-2":
        assert len(merged) == 7
        assert set(evidence.measured["epochs"].dropna()) <= {2.0}
    if artefact == "experimental-setup":
        assert check_of(evidence, "divides the rate by 10").verdict == "holds"


@pytest.mark.slow
@pytest.mark.parametrize("artefact", ["warm-start", "alternating-normalization"])
def test_highest_rates_end_to_end(artefact: str, shared: Context) -> None:
    evidence = carried_out(f"understanding-bn/{artefact}", shared, effort=TINY)
    # So short a training of batch norm is no control: no highest rate is known.
    assert_whole(f"understanding-bn/{artefact}", evidence, unmeasured=("achievable_lr",))
    if artefact == "warm-start":
        assert check_of(evidence, "The first epochs of every warm start").verdict == "holds"
    else:
        assert all(check.verdict == "holds" for check in evidence.checks if check.claim.startswith("Batch "))


@pytest.mark.slow
def test_table_3_end_to_end(shared: Context) -> None:
    evidence = carried_out("understanding-bn/table-3", shared, effort=replace(TINY, rates=RateGrid((0.01,), None)))
    assert_whole("understanding-bn/table-3", evidence)
    assert set(evidence.measured["layers"]) == {8}


def test_rates_are_compared_seed_by_seed() -> None:
    # The first seed does not diverge at 0.1 and is best at 0.01, the second diverges beyond 0.01.
    runs = runs_of({(0.01, 0): 90.0, (0.1, 0): 60.0, (0.01, 1): 80.0, (0.1, 1): None})
    assert highest_decade(runs).by_seed == pytest.approx({0: -1, 1: -2})
    assert best_decade(runs).by_seed == pytest.approx({0: -2, 1: -2})
    assert best_rate(runs) == 0.01
    nowhere = runs_of({(0.01, 0): 10.0, (0.1, 0): None}).assign(outcome=["chance", "diverged"])
    assert highest_decade(nowhere).mean == best_decade(nowhere).mean == pytest.approx(math.log10(0.005))
    # Runs that raised cannot tell.
    assert math.isnan(highest_decade(nowhere.assign(outcome="failed")).mean)


def test_an_achievable_rate_is_one_without_divergence_however_little_is_learned() -> None:
    """Appendix J of the text; half of batch norm's gain is not asked."""
    poor = runs_of({(0.01, 0): 90.0, (0.01, 1): 90.0, (0.1, 0): 15.0, (0.1, 1): 14.0})
    assert highest_achievable_rate(poor) == 0.1
    one_diverged = runs_of({(0.01, 0): 90.0, (0.01, 1): 90.0, (0.1, 0): 80.0, (0.1, 1): None})
    assert highest_achievable_rate(one_diverged) == 0.01
    assert highest_achievable_rate(one_diverged[one_diverged["outcome"] == "diverged"]) == 0


def test_learning_has_plateaued_where_its_accuracy_no_longer_rises_at_the_first_rate() -> None:
    def run(name: str, accuracies: list[float]) -> pd.DataFrame:
        rates = [0.1] * (len(accuracies) // 2) + [0.01] * (len(accuracies) - len(accuracies) // 2)
        return pd.DataFrame(
            {
                "hash": name,
                "epoch": range(1, len(accuracies) + 1),
                "epoch_rate": rates,
                "training_accuracy": accuracies,
            }
        )

    rising, flat = [0.1, 0.5, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9], [0.5, 0.9, 0.905, 0.91, 0.99, 0.99, 1.0, 1.0]
    epochs = pd.concat([run("rising", rising), run("flat", flat), run("short", [0.5, 0.9])])
    assert plateaus(epochs) == {"rising": False, "flat": True}
    assert plateaus(epochs.iloc[:0]) == {}
