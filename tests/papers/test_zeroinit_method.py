"""ZeroInit's algorithm and its claims about initialization: carried out small, and checks that can fail."""

from __future__ import annotations

from papers_helpers import assert_whole, carried_out, check_of
from recorded_lab import recorded

from normless.papers.artefact import Context, artefact_of
from normless.papers.verdict import verdict_of
from normless.training import TrainConfig


def test_zeroinit_without_training(context: Context) -> None:
    told, lab = recorded(context, lambda config: ("trained", 0.4))
    evidence = carried_out("zeroinit/zeroinit", told, draws=200)
    assert_whole("zeroinit/zeroinit", evidence)
    assert {one.verdict for one in evidence.checks[:-1]} == {"holds"}
    assert evidence.checks[-1].verdict == "inconclusive"
    assert len(lab.configs) == 1
    never, _ = recorded(context, lambda config: ("diverged", 0.1))
    assert verdict_of(carried_out("zeroinit/zeroinit", never, draws=50).checks) == "fails"


def test_zeroinit_at_the_papers_budget(context: Context) -> None:
    settings = {**artefact_of("zeroinit/zeroinit").settings["paper"], "depth": 10, "draws": 50}
    for accuracy, verdict in ((0.94, "holds"), (0.92, "fails")):
        told, lab = recorded(context, lambda config, reached=accuracy: ("trained", reached))
        evidence = carried_out("zeroinit/zeroinit", told, **settings)
        assert check_of(evidence, "reach 94.3 %").verdict == verdict
        (config,) = lab.configs
        assert isinstance(config, TrainConfig)
        assert (config.model, config.epochs, config.batch_size, config.data) == (
            "normless:wide_resnet(depth=1000, width=2, initialization=he_fan_in, classifier_bias=False)",
            200, 64, "cifar10",
        )  # fmt: skip


def test_linear_at_init(context: Context) -> None:
    evidence = carried_out("zeroinit/linear-at-init", context, depths=(10, 40))
    merged = assert_whole("zeroinit/linear-at-init", evidence)
    assert len(merged) == 4
    assert {one.verdict for one in evidence.checks[:3]} == {"holds"}
    numbers = check_of(evidence, "At depth 40").numbers
    assert numbers["claimed_larger"] > numbers["claimed_smaller"]


def test_l2_dominates(context: Context) -> None:
    told, lab = recorded(context, lambda config: ("trained", 0.4))
    evidence = carried_out("zeroinit/l2-dominates-initial-loss", told, depths=(10, 40), draws=6)
    assert_whole("zeroinit/l2-dominates-initial-loss", evidence)
    assert verdict_of(evidence.checks) == "holds"
    assert [config.weight_decay for config in lab.configs] == [0.0]
    backwards = carried_out("zeroinit/l2-dominates-initial-loss", told, depths=(40, 10), draws=1)
    assert check_of(backwards, "The share of L2").verdict == "fails"
