"""What the training artefacts of Fixup would run, without running it, and one tiny run of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_runs import Ending, made_up
from papers_helpers import assert_whole, carried_out, context_in

from normless_papers.artefact import Context, artefact_of
from normless_papers.experiments.effort import Effort

# Runs of the paper's setup: of each artefact the sweeps' numbers of runs.
COUNTS = {
    "fixup/table-1": [2 * 5, 5 * 5],
    "fixup/figure-4": [6 * 5],
    "fixup/figure-3": [4 * 5] * 5 + [4 * 3],
    "fixup/rule-2": [6 * 5] * 5 + [6 * 3],
    "fixup/sqrt2-scaling": [3 * 5] * 4,
    "fixup/lsuv": [3 * 5] * 4,
    "fixup/table-4": [2 * 5, 2 * 5],
    "fixup/table-2": [5, 4, 3],
    "fixup/figure-5": [3],
    "fixup/figure-6": [3],
    "fixup/scalar-lr": [2],
}
# What the baselines measure beside their runs, made small.
MEASURED = {
    "fixup/sqrt2-scaling": {"blocks": 4, "width": 50, "draws": 2, "depth": 10, "images": 2, "shown": "digits"},
    "fixup/lsuv": {"depth": 10, "images": 16, "shown": "digits"},
}


def endings(labels: Mapping[str, str], config: Mapping[str, Any]) -> Ending:
    """Everything trains to 60 %, but deep networks without rule 2 and ten times the scale diverge."""
    scheme, model = config["scheme"], config["model"]
    deep = "depth=10," not in model and "wide_resnet" in model
    fails = deep and scheme in ("sqrt2", "lsuv", "none", "fixup(rescale=False)")
    if fails or "gain=10" in scheme or (scheme == "xavier" and config["rate"] >= 0.01):
        return Ending(0.1, "diverged")
    return Ending({"batch_norm": 0.62, "xavier": 0.5}.get(scheme, 0.6))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    """One laboratory for all runs of this file: its worker stays warm, and runs that artefacts share run once."""
    context = context_in(tmp_path_factory.mktemp("runs"))
    with context.lab:
        yield context


@pytest.fixture
def paper(tmp_path: Path) -> Context:
    return made_up(endings, tmp_path)


@pytest.mark.parametrize("artefact", COUNTS)
def test_the_paper_budget_is_the_published_setup(artefact: str, paper: Context) -> None:
    carried_out(artefact, paper, **MEASURED.get(artefact, {}))
    lab: Any = paper.lab
    assert [len(sweep.points()) for sweep in lab.sweeps] == COUNTS[artefact]
    hashes = [point.config.hash for sweep in lab.sweeps for point in sweep.points()]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("artefact", ["fixup/sqrt2-scaling", "fixup/lsuv", "fixup/rule-2"])
def test_runs_that_figure_3_has_too_are_the_same_runs(artefact: str, paper: Context) -> None:
    lab: Any = paper.lab
    carried_out("fixup/figure-3", paper)
    own = {point.config.hash for sweep in lab.sweeps for point in sweep.points()}
    lab.sweeps.clear()
    carried_out(artefact, paper, **MEASURED.get(artefact, {}))
    shared = [point for sweep in lab.sweeps for point in sweep.points() if point.config.hash in own]
    assert {"BatchNorm", "Fixup"} <= {point.labels["method"] for point in shared}


SETTINGS = {"schedule": "constant", "momentum": 0.9, "weight_decay": 5e-4, "decay_policy": "all"}
TINY_DEPTHS = tuple(
    Effort(
        data=f"digits(train={train}, test=60)",
        model=f"normless:wide_resnet(depth={depth}, width=1, initialization=None)",
        epochs=1,
        batch_size=batch_size,
        settings=SETTINGS,
    )
    for depth, batch_size, train in ((10, 64, 128), (16, 32, 64))
)


@pytest.mark.slow
@pytest.mark.parametrize("artefact", ["fixup/figure-3", "fixup/rule-2"])
def test_depths_end_to_end(artefact: str, shared: Context) -> None:
    evidence = carried_out(artefact, shared, efforts=TINY_DEPTHS)
    assert_whole(artefact, evidence)
    assert sorted(set(evidence.measured["depth"])) == [10, 16]
    assert evidence.measured["failed"].sum() == 0


def small(effort: Any) -> Any:
    """The same effort with a network and a data set of next to nothing."""
    network = "wide_resnet(depth=10, width=1)" if "wide" in effort.model else "resnet_cifar(depth=8)"
    return replace(
        effort, model=f"normless:{network}", data="digits(train=96, test=60)", epochs=2, batch_size=32, replicates=1
    )


@pytest.mark.slow
@pytest.mark.parametrize("artefact", ["fixup/table-1", "fixup/figure-4"])
def test_cifar_networks_end_to_end(artefact: str, shared: Context) -> None:
    effort = small(artefact_of(artefact).settings["smoke"]["effort"])
    evidence = carried_out(artefact, shared, effort=effort)
    assert_whole(artefact, evidence)
    assert evidence.measured["failed"].sum() == 0


def test_regularized_end_to_end(shared: Context) -> None:
    effort = small(artefact_of("fixup/table-4").settings["smoke"]["efforts"]["cifar10"])
    evidence = carried_out("fixup/table-4", shared, efforts={"cifar10": effort})
    assert evidence.measured["failed"].sum() == 0
    assert [remark for remark in evidence.remarks if "replaces the table's cifar10" in remark]


@pytest.mark.slow
def test_imagenet_networks_end_to_end(shared: Context) -> None:
    efforts = {
        name: small(effort) for name, effort in artefact_of("fixup/table-2").settings["smoke"]["efforts"].items()
    }
    for artefact in ("fixup/table-2", "fixup/figure-5", "fixup/figure-6", "fixup/scalar-lr"):
        changes = {"efforts": efforts} if artefact == "fixup/table-2" else {"effort": efforts["resnet_50"]}
        evidence = carried_out(artefact, shared, **changes)
        assert_whole(artefact, evidence)
        assert not [remark for remark in evidence.remarks if "failed" in remark]
