"""SkipInit, its regularized and V1 forms, batch norm and the reference code: carried out small, and their checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from papers_helpers import assert_whole, carried_out, check_of
from recorded_lab import recorded
from torch import nn

from normless import convert
from normless.models import resnet_v2
from normless.papers.artefact import Context, artefact_of
from normless.papers.skipinit.reference_code import appendix_g, expected_parameters
from normless.papers.skipinit.scalar_bias import METHODS, _algorithm, _gap
from normless.papers.verdict import Estimate, verdict_of
from normless.training import TrainConfig


def test_batch_norm_definition(context: Context) -> None:
    evidence = carried_out("skipinit/batch-norm-definition", context)
    assert_whole("skipinit/batch-norm-definition", evidence)
    assert verdict_of(evidence.checks) == "holds"
    assert check_of(evidence, "in another batch").numbers["largest_difference"] > 0.01


def test_regularized_skipinit(context: Context) -> None:
    evidence = carried_out("skipinit/regularized-skipinit", context, draws=200)
    merged = assert_whole("skipinit/regularized-skipinit", evidence)
    assert verdict_of(evidence.checks) == "holds"
    keep = merged.set_index("quantity").loc["keep_prob_in_code"]
    assert keep["value_published"] == 0.8
    assert keep["value_measured"] == pytest.approx(0.8, abs=0.02)


def test_scalar_bias(context: Context) -> None:
    check, agreements = _algorithm(32)
    assert check.verdict == "holds"
    assert check.numbers["scalars"] == 16
    assert all(one.agrees for one in agreements)


@pytest.mark.parametrize(
    ("accuracies", "verdicts"),
    [((74.4, 70.0, 75.2), ["holds", "holds"]), ((74.4, 72.0, 70.0), ["fails", "fails"])],
)
def test_the_bias_closes_the_gap_or_does_not(accuracies: tuple[float, ...], verdicts: list[str]) -> None:
    class Found:
        def top1(self, method: str, size: int) -> Estimate:
            return Estimate(accuracies[list(METHODS).index(method)], 0.1, 3)

    assert [one.verdict for one in _gap(Found(), 256)] == verdicts  # type: ignore[arg-type]


@pytest.mark.slow
def test_scalar_bias_is_trained(context: Context) -> None:
    evidence = carried_out("skipinit/scalar-bias-v1", context)
    assert_whole("skipinit/scalar-bias-v1", evidence)
    assert {one.verdict for one in evidence.checks[:4]} == {"holds"}


def test_reference_code(context: Context) -> None:
    evidence = carried_out("skipinit/appendix-g-resnet50-v2", context, side=32, images=1)
    merged = assert_whole("skipinit/appendix-g-resnet50-v2", evidence).set_index("quantity")
    assert verdict_of(evidence.checks) == "holds"
    assert merged.loc["blocks_per_group", "value_measured"] == merged.loc["blocks_per_group", "value_published"]


def test_the_reference_code_has_its_multipliers_and_the_counted_parameters() -> None:
    network = convert(resnet_v2(50), "zeroinit(dropout=0)").double().eval()
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    start = appendix_g(network, x)
    torch.testing.assert_close(network(x), start)
    nn.init.ones_(network.get_submodule("blocks.4.conv3").get_parameter("multiplier"))
    assert not torch.allclose(appendix_g(network, x), start)
    assert expected_parameters() == sum(one.numel() for one in network.parameters())


def scripted(config: Any) -> tuple[Any, float]:
    assert isinstance(config, TrainConfig)
    return ("diverged", 0.1) if "alpha=1)" in config.scheme else ("trained", 0.5)


def test_skipinit_without_training(context: Context) -> None:
    told, lab = recorded(context, scripted)
    evidence = carried_out("skipinit/skipinit", told)
    assert_whole("skipinit/skipinit", evidence)
    assert verdict_of(evidence.checks) == "inconclusive"
    assert check_of(evidence, "With α = 1, 100 layers").verdict == "holds"
    assert check_of(evidence, "1000 layers train: this budget").verdict == "inconclusive"
    assert len({config.hash for config in lab.configs}) == len(lab.configs) == 3
    trained_anyway, _ = recorded(context, lambda config: ("trained", 0.5))
    assert verdict_of(carried_out("skipinit/skipinit", trained_anyway).checks) == "fails"
    never, _ = recorded(context, lambda config: ("diverged", 0.1))
    assert check_of(carried_out("skipinit/skipinit", never), "With α = 0, 100 layers").verdict == "fails"


def test_skipinit_at_the_papers_budget_trains_a_thousand_layers_at_seven_rates(context: Context) -> None:
    told, lab = recorded(context, scripted)
    training = {**artefact_of("skipinit/skipinit").settings["paper"], "depth": 10, "width": 1}
    evidence = carried_out("skipinit/skipinit", told, **training)
    assert len(lab.configs) == 21
    assert all(isinstance(config, TrainConfig) and config.epochs == 200 for config in lab.configs)
    assert sum("depth=1000" in config.to_dict()["model"] for config in lab.configs) == 14
    assert verdict_of(evidence.checks) == "holds"
