"""What "Understanding batch normalization" claims of the gradients of ResNet-110 at initialization, measured.

Generated images of 16 × 16 and a batch of 16 where the paper has CIFAR-10 and 128. The networks are the paper's:
Xavier's weights without normalization and with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from cifar_like import BARE, NORMALIZED, batches, resnet110

from normless.probes import observe
from normless_papers.probes.channel_contributions import ChannelContributions, dominance_table
from normless_papers.probes.channel_gradients import ChannelGradients, channel_gradient_spread
from normless_papers.probes.channel_pairs import ChannelPairs
from normless_papers.probes.gradient_sums import GradientSums
from normless_papers.probes.parameter_gradients import ParameterGradients, gradient_alignment_table
from normless_papers.probes.summand_distribution import SummandDistribution, summand_statistics

SEEDS = (0, 1, 2)
SUMS = ("sum_abs", "sum_b_abs_sum_xy", "sum_xy_abs_sum_b", "abs_sum")


def path(layer: int) -> str:
    """Where layer 2, 3, … of the network is; the stem is layer 1."""
    return f"blocks.{(layer - 2) // 2}.conv{1 + layer % 2}"


@dataclass(frozen=True)
class Measured:
    """All tables of one pass."""

    sums: pd.DataFrame
    alignment: pd.DataFrame
    summands: pd.DataFrame
    structure: pd.Series
    spread: pd.DataFrame
    dominance: pd.DataFrame


def measure(scheme: str, seed: int) -> Measured:
    model = resnet110(scheme, seed)
    ((inputs, targets),) = batches(1, 16, 16, seed)
    sums, parameters, summands = (
        GradientSums(),
        ParameterGradients([path(35), path(54)]),
        SummandDistribution(path(90)),
    )
    pairs, channels = ChannelPairs([path(45)]), ChannelGradients()
    contributions = ChannelContributions([path(layer) for layer in (19, 35, 55, 91)])
    watchers = [sums, parameters, summands, pairs, channels, contributions]
    observe(model, watchers, inputs, targets)
    assert not any(watcher.missed for watcher in watchers)
    return Measured(
        sums.table().set_index("order"),
        gradient_alignment_table(parameters.table()).set_index("order"),
        summand_statistics(summands.table()).set_index("chosen"),
        pairs.structure().iloc[0],
        channel_gradient_spread(channels.table()).set_index("order"),
        dominance_table(contributions.table()).set_index("order"),
    )


@pytest.fixture(scope="module")
def bare() -> list[Measured]:
    return [measure(BARE, seed) for seed in SEEDS]


@pytest.fixture(scope="module")
def normalized() -> list[Measured]:
    return [measure(NORMALIZED, seed) for seed in SEEDS]


def test_understanding_bn_equation_4_summands_make_up_the_gradient_and_its_inequalities() -> None:
    """understanding-bn/equation-4: Σd is the gradient of autograd; |Σd| ≤ Σ|Σd| ≤ Σ|d| for every parameter.

    Here in layer 35 of both networks; for convolutions of all kinds against every summand in test_summands.
    """
    for scheme in (BARE, NORMALIZED):
        model = resnet110(scheme).train()
        ((inputs, targets),) = batches(1, 4, 8)
        watcher = ParameterGradients([path(35)])
        observe(model, [watcher], inputs, targets)
        weight = model.get_submodule(path(35)).weight
        (exact,) = torch.autograd.grad(F.cross_entropy(model(inputs), targets), [weight])
        table = watcher.table()
        np.testing.assert_allclose(
            table["gradient"], exact.flatten().double(), rtol=1e-3, atol=1e-3 * float(exact.abs().mean())
        )
        allowed = 1e-5 * table["sum_abs"]
        for between in ("sum_b_abs_sum_xy", "sum_xy_abs_sum_b"):
            assert (table["abs_sum"] <= table[between] + allowed).all()
            assert (table[between] <= table["sum_abs"] + allowed).all()


def test_understanding_bn_table_1_summands_agree_without_batch_norm_and_cancel_with_it(
    bare: list[Measured], normalized: list[Measured]
) -> None:
    """understanding-bn/table-1: without batch norm Σ|d| and |Σd| agree to a factor of about 2, with it to 40–250.

    The published factors are 1.7, 2.6, 2.1 and 252, 113, 41 in layers 18, 54, 90. Here they are 1.7 to 4.4 without,
    and 42, 20, 9 with it: there summands all but have random signs, the ratio is 1.5 to 1.9 times 1/√N, and the
    number of summands N is 8 to 32 times smaller than the paper's. On CIFAR-10 at the paper's size (seed 0) the
    factors were 4.3, 4.2, 2.7 without and 246, 81, 31 with batch norm.
    """
    for with_norm, without in zip(normalized, bare, strict=True):
        for layer in (18, 54, 90):
            here, there = without.sums.loc[layer], with_norm.sums.loc[layer]
            assert 0.15 < here["input_independence"] < 1
            assert 0.15 < here["parameter_input_independence"] < 1
            assert 1 < there["input_independence"] / there["predicted_for_random_signs"] < 2.5
            assert here["input_independence"] > 2.5 * there["input_independence"]
            assert here["abs_sum"] > 7 * there["abs_sum"]
        sizes = without.sums["abs_sum"].astype(float)
        assert sizes[18] < sizes[54] < sizes[90]


def test_understanding_bn_ratio_is_of_order_one_without_norm_and_near_a_hundredth_with_it() -> None:
    """Layers 18, 54, 90 with 64 images: 0.37, 0.47, 0.48 without batch norm, 0.012, 0.026, 0.06 with it (3 draws).

    With batch norm the ratio goes as 1/√N, here 0.008, 0.016, 0.03, at the paper's size 0.003, 0.006, 0.011.
    """
    ratios = {BARE: [], NORMALIZED: []}
    for seed in SEEDS:
        ((inputs, targets),) = batches(1, 64, 16, seed)
        for scheme, found in ratios.items():
            watcher = GradientSums([path(layer) for layer in (18, 54, 90)])
            observe(resnet110(scheme, seed), [watcher], inputs, targets)
            found.append(watcher.table()["input_independence"].to_numpy(float))
    without, with_norm = (np.mean(ratios[scheme], axis=0) for scheme in (BARE, NORMALIZED))
    assert np.all(without > 0.25)
    assert np.all((with_norm > np.array([0.005, 0.01, 0.02])) & (with_norm < np.array([0.02, 0.05, 0.1])))


def test_understanding_bn_table_4_neighbouring_layers(bare: list[Measured], normalized: list[Measured]) -> None:
    """understanding-bn/table-4: as table 1 for layers 19, 55, 91; without batch norm smaller than 18, 54, 90.

    The first half holds. The second does not as a rule: |Σd| of the second convolution over that of the first is here
    between 0.67 and 1.26 from draw to draw (printed: 0.54, 0.23, 0.53). With batch norm Σ|d| is smaller in the
    second in every draw, by 0.70 to 0.76 (printed: 0.70, 0.86, 0.82).
    """
    without = []
    for here, there in zip(bare, normalized, strict=True):
        for first, second in ((18, 19), (54, 55), (90, 91)):
            assert here.sums.loc[second, "input_independence"] > 2.5 * there.sums.loc[second, "input_independence"]
            assert here.sums.loc[second, "abs_sum"] > 7 * there.sums.loc[second, "abs_sum"]
            assert 0.5 < there.sums.loc[second, "sum_abs"] / there.sums.loc[first, "sum_abs"] < 0.9
            without.append(here.sums.loc[second, "abs_sum"] / here.sums.loc[first, "abs_sum"])
    assert 0.5 < min(without) < max(without) < 2


def test_understanding_bn_figure_7_gradients_are_nearly_of_rank_one_without_batch_norm(
    bare: list[Measured], normalized: list[Measured]
) -> None:
    """understanding-bn/figure-7: some channels of layer 45 have consistently large gradients; not with norm."""
    for here, there in zip(bare, normalized, strict=True):
        assert here.structure["effective_rank"] < 4
        assert here.structure["rank_one_share"] > 0.95
        assert here.structure["variation"] > 1.5
        assert there.structure["effective_rank"] > 2.5 * here.structure["effective_rank"]
        assert there.structure["rank_one_share"] < 0.7
        assert there.structure["variation"] < 0.6


def test_understanding_bn_figure_18_gradients_follow_channel_means_without_batch_norm(
    bare: list[Measured], normalized: list[Measured]
) -> None:
    """understanding-bn/figure-18: in layer 35 channels with large means have large gradients, dead ones none.

    The means of the normalized network are those that its norms take away.
    """
    for here, there in zip(bare, normalized, strict=True):
        assert here.alignment.loc[35, "mean_correlation"] > 0.7
        assert here.alignment.loc[35, "dead_gradient"] < 0.05 * here.alignment.loc[35, "live_gradient"]
        assert abs(there.alignment.loc[35, "mean_correlation"]) < 0.25
        assert there.alignment.loc[35, "dead_gradient"] > 0.4 * there.alignment.loc[35, "live_gradient"]


def test_understanding_bn_figure_19_channels_of_early_layers_differ_without_batch_norm(
    bare: list[Measured], normalized: list[Measured]
) -> None:
    """understanding-bn/figure-19: bias gradients differ a lot in early layers and little in late ones without norm.

    In absolute terms: their deviation over channels is 160 to 1500 times larger in layers 2–10 than in 95–108, and 6
    to 7 times with batch norm. Relative to their size channels differ about as much in early layers as in late ones
    (0.54 to 0.64 and 0.56 to 0.62 decades), so the section's stronger reading, that the differences within a layer
    grow with the depth ahead beyond the scale, is not seen.
    """
    for here, there in zip(bare, normalized, strict=True):
        ratios, decades = [], []
        for measured in (here, there):
            early, late = (
                measured.spread.loc[2:10].mean(numeric_only=True),
                measured.spread.loc[95:108].mean(numeric_only=True),
            )
            ratios.append(early["standard_deviation"] / late["standard_deviation"])
            decades.append(early["decades"] / late["decades"])
        assert ratios[0] > 50
        assert ratios[1] < 15
        assert 0.6 < decades[0] < 1.6


def test_understanding_bn_figure_22_summands_of_a_large_gradient_are_skewed(bare: list[Measured]) -> None:
    """understanding-bn/figure-22: of a parameter with |Σd| ≈ Σ|d| in layer 90 most are of one sign, else centred."""
    for here in bare:
        large, small = here.summands.loc["largest"], here.summands.loc["cancelling"]
        assert large["input_independence"] > 0.6
        assert large["one_sign_share"] > 0.65
        assert large["mean_in_deviations"] > 0.4
        assert small["one_sign_share"] < 0.65
        assert small["mean_in_deviations"] < 0.01


def test_understanding_bn_figure_23_gradients_lie_on_a_line_without_batch_norm(
    bare: list[Measured], normalized: list[Measured]
) -> None:
    """understanding-bn/figure-23: in layer 54 |Σd| goes with Σ|d|; with batch norm that is gone."""
    for here, there in zip(bare, normalized, strict=True):
        assert here.alignment.loc[54, "sum_correlation"] > 0.7
        assert here.alignment.loc[54, "share_aligned"] > 0.1
        assert there.alignment.loc[54, "sum_correlation"] < 0.5
        assert there.alignment.loc[54, "share_aligned"] < 0.001


def test_understanding_bn_dominating_channels_those_with_large_means_contribute_the_most(
    bare: list[Measured], normalized: list[Measured]
) -> None:
    """understanding-bn/dominating-channels: channels with the largest means matter, few of them in effect.

    Seen in the second convolution of four blocks: 34 to 65% of the channels count in effect, all of them with batch
    norm. That "effectively only one channel matters" is not seen.
    """
    for here, there in zip(bare, normalized, strict=True):
        assert (here.dominance["mean_correlation"] > 0.9).all()
        assert (here.dominance["effective_share"] < 0.75).all()
        assert (there.dominance["mean_correlation"] < 0.7).all()
        assert (there.dominance["effective_share"] > 0.95).all()
