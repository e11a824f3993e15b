"""One tiny run of every kind of training artefact, in this process: the tables are whole and no run fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from papers_helpers import CheckedEvidence, assert_whole, carried_out, check_of, context_in, verdict_of

from normless_lab.sweeps import RateGrid
from normless_papers.artefact import Context, artefact_of
from normless_papers.experiments.effort import Effort

BJORCK = Effort(
    data="digits(train=128, test=60)",
    model="normless:resnet_cifar(depth=8)",
    epochs=2,
    batch_size=64,
    rates=RateGrid((0.1,), None),
    settings={"momentum": 0.9, "weight_decay": 5e-4, "decay_policy": "all", "schedule": "step"},
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


def smoke(name: str) -> dict[str, Any]:
    return dict(artefact_of(name).settings["smoke"])


def small(effort: Any) -> Any:
    """The same effort with a network and a data set of next to nothing."""
    network = "wide_resnet(depth=10, width=1)" if "wide" in effort.model else "resnet_cifar(depth=8)"
    data = {"data": "digits(train=96, test=60)", "epochs": 2, "batch_size": 32, "replicates": 1}
    return replace(effort, model=f"normless:{network}", **data)


TRANSLATOR = Effort(
    data="grammar(train=60, validation=4, test=4)",
    model="normless:transformer(layers=2, width=16, heads=4, feed_forward=32, norm='post', dropout=0.0)",
    run="train-translation",
    epochs=2,
    rates=RateGrid((3e-3,), None),
    settings={"vocabulary": 200, "batch_tokens": 400, "warmup_steps": 2, "beam_width": 1, "longer_by": 2},
)


FAST: dict[str, dict[str, Any]] = {
    "understanding-bn/figure-1": {"effort": BJORCK},
    "understanding-bn/table-2": {"effort": BJORCK},
    "understanding-bn/experimental-setup": {"effort": BJORCK},
    "fixup/table-4": {"efforts": {"cifar10": small(smoke("fixup/table-4")["efforts"]["cifar10"])}},
}
SLOW: dict[str, dict[str, Any]] = {
    "understanding-bn/bn-on-top": {"effort": BJORCK, "batch_size": 4, "draws": 2},
    "skipinit/scalar-bias-v1": {},
    "gamma/guideline-1": {
        "effort": replace(
            smoke("gamma/guideline-1")["effort"],
            data="digits(train=64, test=40)",
            epochs=1,
            rates=RateGrid((0.1,), None),
            replicates=2,
        )
    },
    "fixup/transformer": {"effort": TRANSLATOR},
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """One folder for all runs of this file: runs that artefacts share run once."""
    return context_in(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_it_is_carried_out(name: str, shared: Context) -> None:
    evidence = carried_out(name, shared, **(FAST | SLOW)[name])
    if name != "fixup/table-4":
        assert_whole(name, evidence)
    assert not [remark for remark in evidence.remarks if "failed" in remark]
    if "failed" in evidence.measured:
        assert not evidence.measured["failed"].any()
    if name in FACTS:
        FACTS[name](evidence, shared)


def of_scalar_bias(evidence: CheckedEvidence, _: Context) -> None:
    assert {check.verdict for check in evidence.checks[:4]} == {"holds"}


def of_guideline_1(evidence: CheckedEvidence, context: Context) -> None:
    """The laboratory keeps the weights of the two choices and seeds."""
    assert {"trained_gamma_last", "trained_branch_share"} <= set(evidence.measured.columns)
    assert check_of(evidence, "raises the test accuracy").verdict == "inconclusive"
    smaller = check_of(evidence, "γ_last ends smaller").numbers
    assert smaller["W"] > smaller["gamma_last"]
    assert len(list((context.directory / "lab" / "weights").iterdir())) == 4


def of_transformer(evidence: CheckedEvidence, _: Context) -> None:
    """So short a training, and a single one, leaves open whether it is stable, and what layer norm reaches."""
    assert [check.verdict for check in evidence.checks[-2:]] == ["inconclusive"] * 2
    assert verdict_of(evidence.checks[:-2]) == "holds"
    counts = evidence.measured.set_index("quantity")["count"]
    assert (counts["scalar multipliers"], counts["scalar biases"]) == (10, 6 * 4 + 4 * 3 + 1)


FACTS = {
    "fixup/transformer": of_transformer,
    "skipinit/scalar-bias-v1": of_scalar_bias,
    "gamma/guideline-1": of_guideline_1,
}
