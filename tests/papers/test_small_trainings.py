"""One tiny run of every kind of training artefact, in this process: the tables are whole and no run fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from papers_helpers import CheckedEvidence, assert_whole, carried_out, check_of, context_in, verdict_of

from normless_lab.sweeps import RateGrid
from normless_papers.artefact import Context, artefact_of
from normless_papers.experiments.effort import Effort
from normless_papers.fixup import translation

BJORCK = Effort(
    data="digits(train=128, test=60)",
    model="normless:resnet_cifar(depth=8)",
    epochs=2,
    batch_size=64,
    rates=RateGrid((0.01, 0.1), None),
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


def translator(layers: int) -> Effort:
    size = f"layers={layers}, width=16, heads=4, feed_forward=32, norm='post', dropout=0.0"
    return Effort(
        data="grammar(train=60, validation=4, test=4)",
        model=f"normless:transformer({size})",
        run="train-translation",
        epochs=2,
        rates=RateGrid((3e-3,), None),
        settings={"vocabulary": 200, "batch_tokens": 400, "warmup_steps": 2, "beam_width": 1, "longer_by": 2},
    )


def of_gamma(name: str, rate: float, replicates: int, **changes: Any) -> Any:
    rates = RateGrid((rate,), None)
    return replace(smoke(name)["effort"], epochs=1, rates=rates, replicates=replicates, **changes)


DEEP = tuple(f"{method}/{depth}" for method in ("zeroinit_without_l2", "scalar_multiplier") for depth in (100, 1000))
FAST: dict[str, dict[str, Any]] = {
    "understanding-bn/figure-1": {"effort": BJORCK},
    "understanding-bn/bn-on-top": {"effort": BJORCK, "batch_size": 4, "draws": 2},
    "understanding-bn/table-2": {"effort": BJORCK},
    "understanding-bn/experimental-setup": {"effort": BJORCK},
    "fixup/table-4": {"efforts": {"cifar10": small(smoke("fixup/table-4")["efforts"]["cifar10"])}},
}
SLOW: dict[str, dict[str, Any]] = {
    "understanding-bn/warm-start": {"effort": BJORCK},
    "understanding-bn/alternating-normalization": {"effort": BJORCK},
    "fixup/table-1": {"effort": small(smoke("fixup/table-1")["effort"])},
    "fixup/figure-4": {"effort": small(smoke("fixup/figure-4")["effort"])},
    "fixup/table-2": {"efforts": {name: small(one) for name, one in smoke("fixup/table-2")["efforts"].items()}},
    "zeroinit/table-3": {
        "depths": (10, 16),
        "effort": replace(smoke("zeroinit/table-3")["effort"], rates=RateGrid((2.0**-4, 2.0**-2), None)),
    },
    "skipinit/scalar-bias-v1": {},
    "gamma/guideline-1": {"effort": of_gamma("gamma/guideline-1", 0.1, 2, data="digits(train=64, test=40)")},
    "gamma/guideline-3t": {
        "effort": of_gamma(
            *("gamma/guideline-3t", 0.001, 1),
            data="sentiment(train=120, test=40)",
            batch_size=40,
            settings={"vocabulary": 300},
        )
    },
    "gamma/figure-5": {
        "model": "normless:resnet(depth=50, channels=2)",
        "data": "digits(train=128)",
        "training": {"epochs": 1, "batch_size": 64, "rate": 0.05, "schedule": "cosine"},
        "replicates": 1,
    },
    "fixup/transformer": {"effort": translator(2)},
}
# So short a training of batch norm is no control; networks of other sets and depths are not trained here.
UNMEASURED: dict[str, tuple[str, ...]] = {
    "understanding-bn/warm-start": ("achievable_lr",),
    "understanding-bn/alternating-normalization": ("achievable_lr",),
    "zeroinit/table-3": DEEP,
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    """One laboratory for all runs of this file: runs that artefacts share run once."""
    context = context_in(tmp_path_factory.mktemp("runs"))
    with context.lab:
        yield context


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_it_is_carried_out(name: str, shared: Context) -> None:
    evidence = carried_out(name, shared, **(FAST | SLOW)[name])
    if name not in ("fixup/table-4", "gamma/guideline-3t"):
        assert_whole(name, evidence, unmeasured=UNMEASURED.get(name, ()))
    assert not [remark for remark in evidence.remarks if "failed" in remark]
    if "failed" in evidence.measured:
        assert not evidence.measured["failed"].any()
    if name in FACTS:
        FACTS[name](evidence, shared)
    if name in HOLDS:
        assert check_of(evidence, HOLDS[name]).verdict == "holds"


HOLDS = {
    "understanding-bn/warm-start": "The first epochs of every warm start",
    "understanding-bn/experimental-setup": "divides the rate by 10",
}


def of_table_4(evidence: CheckedEvidence, _: Context) -> None:
    assert [remark for remark in evidence.remarks if "replaces the table's cifar10" in remark]


def of_alternation(evidence: CheckedEvidence, _: Context) -> None:
    assert all(check.verdict == "holds" for check in evidence.checks if check.claim.startswith("Batch "))


def of_scalar_bias(evidence: CheckedEvidence, _: Context) -> None:
    assert {check.verdict for check in evidence.checks[:4]} == {"holds"}


def of_guideline_1(evidence: CheckedEvidence, context: Context) -> None:
    """The laboratory keeps the weights of the two choices and seeds."""
    assert {"trained_gamma_last", "trained_branch_share"} <= set(evidence.measured.columns)
    assert check_of(evidence, "raises the test accuracy").verdict == "inconclusive"
    smaller = check_of(evidence, "γ_last ends smaller").numbers
    assert smaller["W"] > smaller["gamma_last"]
    assert len(list(context.lab.kept.iterdir())) == 4


def of_figure_5(evidence: CheckedEvidence, _: Context) -> None:
    """An epoch of two minibatches teaches nothing, and decides nothing."""
    assert evidence.measured["block"].tolist()[:4] == ["1-0", "1-1", "1-2", "2-0"]
    assert len(evidence.measured) == 16
    assert {check.verdict for check in evidence.checks} == {"inconclusive"}


def of_transformer(evidence: CheckedEvidence, _: Context) -> None:
    """So short a training, and a single one, leaves open whether it is stable, and what layer norm reaches."""
    assert [check.verdict for check in evidence.checks[-2:]] == ["inconclusive"] * 2
    assert verdict_of(evidence.checks[:-2]) == "holds"
    counts = evidence.measured.set_index("quantity")["count"]
    assert (counts["scalar multipliers"], counts["scalar biases"]) == (10, 6 * 4 + 4 * 3 + 1)


FACTS = {
    "fixup/table-4": of_table_4,
    "fixup/transformer": of_transformer,
    "understanding-bn/alternating-normalization": of_alternation,
    "skipinit/scalar-bias-v1": of_scalar_bias,
    "gamma/guideline-1": of_guideline_1,
    "gamma/figure-5": of_figure_5,
}


@pytest.mark.slow
def test_another_initialization_of_the_transformer_is_noticed(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = translation.convert

    def spoiled(model: Any, scheme: str, *inputs: Any) -> Any:
        network = original(model, scheme, *inputs)
        with torch.no_grad():
            network.encoder.layers[0].feed_forward.linear2.weight.add_(0.01)
            network.decoder.layers[0].self_attention.attention.value.weight.mul_(1.01)
        return network

    monkeypatch.setattr(translation, "convert", spoiled)
    evidence = carried_out("fixup/transformer", context, effort=translator(1))
    failing = {check.claim.split(",")[0] for check in evidence.checks if check.verdict == "fails"}
    assert "The last layer of every branch is zero" in failing
    assert "Every attention and feed-forward branch outputs zero at the start" in failing
    assert any(claim.startswith("The other weights of a branch") for claim in failing)
