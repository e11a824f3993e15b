"""What the training artefacts of Fixup would run, without running it, and one tiny run of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from papers_helpers import assert_whole, carried_out, check_of, context_in

from normless.lab.row import RunRow
from normless.lab.sweep import Point, Sweep
from normless.lab.sweep_result import SweepResult, sweep_result
from normless.papers.artefact import Context, artefact_of
from normless.papers.fixup.depth import METHODS, RULES, Depth, Depths
from normless.schemes import parse_scheme

# Runs of the paper's setup: of each artefact the sweeps' numbers of runs.
COUNTS = {
    "fixup/table-1": [2 * 5, 5 * 5],
    "fixup/figure-4": [6 * 5],
    "fixup/figure-3": [4 * 5] * 5 + [4],
    "fixup/rule-2": [5 * 5] * 5 + [5],
    "fixup/table-4": [2 * 5, 2 * 5],
    "fixup/table-2": [6, 4],
    "fixup/figure-5": [3],
    "fixup/figure-6": [3],
    "fixup/scalar-lr": [4],
}
# Which of two outcomes a made-up run has, by its settings.
Outcomes = Any


def made_up(config: dict[str, Any]) -> tuple[str, float]:
    """Everything trains to 60 %, but deep networks without rule 2 and ten times the scale diverge."""
    scheme, model = config["scheme"], config["model"]
    deep = "depth=10," not in model and "wide_resnet" in model
    fails = deep and scheme in ("sqrt2", "lsuv", "none", "fixup(rescale=False)")
    if fails or "gain=10" in scheme or (scheme == "xavier" and config["rate"] >= 0.01):
        return "diverged", 0.1
    return "trained", {"batch_norm": 0.62, "xavier": 0.5}.get(scheme, 0.6) + 0.001 * config["seed"]


class MadeUp:
    """A laboratory that makes up how runs end, and notes the sweeps."""

    def __init__(self) -> None:
        self.sweeps: list[Sweep] = []

    def run(self, sweep: Sweep, **_: Any) -> SweepResult:
        self.sweeps.append(sweep)
        points = sweep.points()
        rows = {point.config.hash: self._row(point) for point in points}
        return sweep_result(sweep, [(point.config.hash, point) for point in points], rows)

    def carry_out(self, configs: Any) -> list[RunRow]:
        return []

    def _row(self, point: Point) -> RunRow:
        config = point.config.to_dict()
        outcome, accuracy = made_up(config)
        epoch = {"epoch": 1, "rate": point.rate, "training_accuracy": accuracy, "test_accuracy": accuracy}
        result = {"test_accuracy": accuracy, "epochs": [epoch | {"training_loss": 1.0, "seconds": 0.0}]}
        kept: Any = outcome
        return RunRow(point.config.hash, "train", config, kept, None, result, 0.0, "", "", {})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    """One laboratory for all runs of this file: its worker stays warm, and runs that artefacts share run once."""
    context = context_in(tmp_path_factory.mktemp("runs"))
    with context.lab:
        yield context


@pytest.fixture
def paper(context: Context) -> Context:
    made: Any = MadeUp()
    return replace(context, lab=made, budget="paper")


@pytest.mark.parametrize("artefact", COUNTS)
def test_the_paper_budget_is_the_published_setup(artefact: str, paper: Context) -> None:
    carried_out(artefact, paper)
    lab: Any = paper.lab
    assert [len(sweep.points()) for sweep in lab.sweeps] == COUNTS[artefact]
    hashes = [point.config.hash for sweep in lab.sweeps for point in sweep.points()]
    assert len(set(hashes)) == len(hashes)


def test_figure_3_is_rate_one_tenth_and_batch_64_at_ten_thousand_layers(paper: Context) -> None:
    carried_out("fixup/figure-3", paper)
    lab: Any = paper.lab
    configs = [point.config.to_dict() for sweep in lab.sweeps for point in sweep.points()]
    assert {(one["rate"], one["epochs"], one["weight_decay"], one["momentum"]) for one in configs} == {
        (0.1, 1, 5e-4, 0.9)
    }
    assert {one["batch_size"] for one in configs if "depth=10000," in one["model"]} == {64}
    assert {one["batch_size"] for one in configs if "depth=10000," not in one["model"]} == {128}


def test_checks_of_made_up_runs(paper: Context) -> None:
    """With these outcomes Fixup's claims hold and those against it fail."""
    figure = carried_out("fixup/figure-3", paper)
    assert check_of(figure, "Fixup trains at 1000 layers").verdict == "holds"
    assert check_of(figure, "LSUV cannot be trained at 1000 layers").verdict == "holds"
    assert check_of(figure, "At 10000 layers Fixup's test accuracy").verdict == "inconclusive"
    assert check_of(figure, "At 1000 layers Fixup's test accuracy").verdict == "holds"
    rules = carried_out("fixup/rule-2", paper)
    assert check_of(rules, "With rules 1 and 3 1000 layers cannot").verdict == "holds"
    assert check_of(rules, "At 1000 layers rules 1 and 3 improve").verdict != "holds"
    ablation = carried_out("fixup/figure-4", paper)
    assert check_of(ablation, "ten times the scale").verdict == "holds"
    assert check_of(ablation, "At a tenth of the scale").verdict == "inconclusive"
    table = carried_out("fixup/table-1", paper)
    assert check_of(table, "cannot be trained at a tenth").verdict == "holds"
    assert check_of(table, "Batch norm has a lower test error").verdict == "holds"
    assert_whole("fixup/table-1", table)


@pytest.mark.parametrize("artefact", ["fixup/table-2", "fixup/table-4"])
def test_measured_rows_stand_beside_published_ones(artefact: str, paper: Context) -> None:
    quoted = (
        "cifar10/(Zagoruyko & Komodakis 2016)",
        "cifar10/(Yamada et al. 2018)",
        "cifar10/(Graham 2014)",
        "svhn/(Zagoruyko & Komodakis 2016)",
        "svhn/(DeVries & Taylor 2017)",
        "svhn/(Lee et al. 2016)",
    )
    merged = assert_whole(artefact, carried_out(artefact, paper), unmeasured=quoted)
    assert len(merged) == 10


def test_all_schemes_are_known() -> None:
    for scheme in (*METHODS.values(), *RULES.values()):
        assert parse_scheme(scheme).edits is not None


TINY_DEPTHS = Depths((Depth(10, 64, 1), Depth(16, 32, 1, "digits(train=64, test=40)")), "digits(train=128, test=60)")


@pytest.mark.parametrize("artefact", ["fixup/figure-3", "fixup/rule-2"])
def test_depths_end_to_end(artefact: str, shared: Context) -> None:
    evidence = carried_out(artefact, shared, effort=TINY_DEPTHS)
    assert_whole(artefact, evidence)
    assert sorted(set(evidence.measured["depth"])) == [10, 16]
    assert evidence.measured["failed"].sum() == 0


def small(effort: Any) -> Any:
    """The same effort with a network and a data set of next to nothing."""
    network = "wide_resnet(depth=10, width=1)" if "wide" in effort.model else "resnet_cifar(depth=8)"
    return replace(
        effort, model=f"normless:{network}", data="digits(train=96, test=60)", epochs=2, batch_size=32, replicates=1
    )


@pytest.mark.parametrize("artefact", ["fixup/table-1", "fixup/figure-4"])
def test_cifar_networks_end_to_end(artefact: str, shared: Context) -> None:
    effort = small(artefact_of(artefact).settings["smoke"]["effort"])
    evidence = carried_out(artefact, shared, effort=effort)
    assert_whole(artefact, evidence)
    assert evidence.measured["failed"].sum() == 0


def test_regularized_end_to_end(shared: Context) -> None:
    cases = tuple(
        replace(case, effort=small(case.effort)) for case in artefact_of("fixup/table-4").settings["smoke"]["cases"]
    )
    evidence = carried_out("fixup/table-4", shared, cases=cases[:1])
    assert evidence.measured["failed"].sum() == 0
    assert [one for one in evidence.remarks if "trained on digits" in one]


def test_imagenet_networks_end_to_end(shared: Context) -> None:
    networks = artefact_of("fixup/table-2").settings["smoke"]["networks"]
    networks = replace(networks, resnet_50=small(networks.resnet_50), resnet_101=small(networks.resnet_101))
    for artefact in ("fixup/table-2", "fixup/figure-5", "fixup/figure-6", "fixup/scalar-lr"):
        evidence = carried_out(artefact, shared, networks=networks)
        assert_whole(artefact, evidence)
        assert not [one for one in evidence.remarks if "failed" in one]
