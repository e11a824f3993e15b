"""The protocols of De & Smith's and Zhang et al.'s trainings, read from what their artefacts ask for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from made_up_runs import Ending, facts_of
from worlds.fixup_training import UNTRAINED, depth_of

from normless import convert
from normless.models.spec import build_model
from normless_lab.train import rate_multiplier
from normless_papers.artefact import Budget, artefact_of
from normless_papers.budgets import BUDGETS
from normless_papers.experiments.de_smith import RESNET_V2, rates_at
from normless_papers.experiments.protocol import asked_by
from normless_papers.experiments.runs import Runs
from normless_papers.pages.protocols import trained

IMAGENET = ("zeroinit/table-4", "zeroinit/table-5", "skipinit/table-7")
OF_FIXUP = ("fixup/table-2", "fixup/figure-5", "fixup/figure-6", "fixup/scalar-lr")


def configs_of(name: str, budget: Budget = "paper") -> list[dict[str, Any]]:
    return [asked.config.to_dict() for asked in asked_by(name, budget)]


def drops(config: Mapping[str, Any], epochs: int) -> dict[int, float]:
    """The epochs, counted from 0, at which the rate changes, with the factor by which it does."""
    rates = [rate_multiplier(str(config["schedule"]), epoch, epochs) for epoch in range(epochs)]
    return {epoch: rates[epoch - 1] / rates[epoch] for epoch in range(1, epochs) if rates[epoch] != rates[epoch - 1]}


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_warm_start_is_batch_norms_alone(budget: Budget) -> None:
    """He et al. 2016, section 4.2, of their network, which has batch norm; it kills Fixup, and Xavier has none."""
    starts = {config["scheme"]: config["warm_start_epochs"] for config in configs_of("fixup/table-1", budget)}
    # ResNet-20, of smoke and cpu, needs none.
    assert starts == {"batch_norm": int(budget not in ("smoke", "cpu")), "fixup": 0, "xavier": 0}
    rates = {
        config["warm_start_rate"] for config in configs_of("fixup/table-1", budget) if config["warm_start_epochs"]
    }
    assert rates <= {0.01}


@pytest.mark.parametrize("name", trained("fixup"))
def test_fixup_never_has_a_warm_start(name: str) -> None:
    for config in configs_of(name):
        if "fixup" in config["scheme"]:
            assert config.get("warm_start_epochs", 0) == config.get("warmup_epochs", 0) == 0


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", IMAGENET)
def test_on_imagenet_fixups_scalars_have_a_tenth_of_the_rate(name: str, budget: Budget) -> None:
    """The authors' code for ImageNet; the multiplier and the bias of ZeroInit have the rate of appendix G's code."""
    configs = configs_of(name, budget)
    scales = {config["scheme"]: config["scalar_rate_scale"] for config in configs}
    assert scales.pop("fixup") == 0.1
    assert set(scales.values()) == {1.0}
    assert {config["weight_decay"] for config in configs} == {1e-4}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", IMAGENET)
def test_the_rate_is_halved_every_five_epochs_from_45_on(name: str, budget: Budget) -> None:
    """ZeroInit, section 5."""
    for config in configs_of(name, budget):
        assert drops(config, 90) == dict.fromkeys(range(45, 90, 5), 2.0)


def test_of_200_epochs_the_rate_is_halved_every_ten_from_100_on() -> None:
    assert drops(configs_of("zeroinit/table-2")[0], 200) == dict.fromkeys(range(100, 200, 10), 2.0)


def test_a_pass_has_the_examples_that_share_statistics() -> None:
    """ "Over a fixed ghost batch size …, before accumulating gradients to form larger batches" (ZeroInit, 3)."""
    for config in configs_of("zeroinit/table-4"):
        assert config["micro_batch_size"] == 256
        ghost = 256 if config["scheme"] == "batch_norm" and config["batch_size"] > 256 else None
        assert config["ghost_batch_size"] == ghost


def test_accumulated_ghost_batches_have_the_gradient_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    network = convert(build_model("normless:resnet_cifar(depth=8)"), "ghost_batch_norm(size=4)").double()
    images, labels = torch.randn(12, 3, 8, 8, dtype=torch.float64), torch.randint(10, (12,))

    def gradients(passes: int) -> list[torch.Tensor]:
        network.zero_grad()
        for part, targets in zip(images.chunk(passes), labels.chunk(passes), strict=True):
            (F.cross_entropy(network(part), targets) / passes).backward()
        return [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]

    torch.testing.assert_close(gradients(3), gradients(1), rtol=1e-9, atol=1e-12)
    # Passes of another size than the ghost batches have other statistics.
    assert not torch.allclose(gradients(6)[0], gradients(1)[0], rtol=1e-3)


def test_wide_resnets_by_fixup_have_their_own_defaults() -> None:
    """Fixup, section 4.1 and appendix C.2: those of Zagoruyko and Komodakis."""
    cifar, svhn = (
        [c for c in configs_of("fixup/table-4") if c["data"].startswith(data)] for data in ("cifar", "svhn")
    )
    assert len(cifar) == len(svhn) == 2
    for config in (*cifar, *svhn, *configs_of("fixup/figure-3"), *configs_of("fixup/rule-2")):
        assert (config["nesterov"], config["momentum"], config["weight_decay"]) == (True, 0.9, 5e-4)
    for config in cifar:
        assert (config["epochs"], config["rate"]) == (200, 0.1)
        assert drops(config, 200) == pytest.approx({60: 5, 120: 5, 160: 5})
    for config in svhn:
        assert (config["epochs"], config["rate"], config["data"]) == (160, 0.01, "svhn(extra=True)")
        assert drops(config, 160) == pytest.approx({80: 10, 120: 10})


@pytest.mark.parametrize("name", OF_FIXUP)
def test_on_imagenet_fixup_divides_the_rate_by_ten_every_30_epochs(name: str) -> None:
    for config in configs_of(name):
        deeper = 2 if "depth=101" in config["model"] else 1
        assert config["epochs"] == 100 * deeper
        assert drops(config, 100 * deeper) == pytest.approx({30 * deeper: 10, 60 * deeper: 10, 90 * deeper: 10})


def test_resnet_110_by_fixup_keeps_the_schedule_of_he_et_al() -> None:
    for config in configs_of("fixup/table-1"):
        assert drops(config, 164) == pytest.approx({82: 10, 123: 10})
        assert not config["nesterov"]


def test_weights_of_resnet_v2_are_truncated_at_two_deviations() -> None:
    """`variance_scaling_initializer()` of appendix G: variance 2/fan-in all the same."""
    torch.manual_seed(0)
    network = build_model(RESNET_V2, classes=200)
    scaled = torch.cat(
        [weight.flatten() * math.sqrt(weight[0].numel() / 2) for weight in network.parameters() if weight.dim() > 1]
    ).double()
    assert scaled.square().mean().item() == pytest.approx(1, abs=0.001)
    assert scaled.abs().max().item() == pytest.approx(2 / 0.87963, rel=1e-3)
    # Of a normal distribution it is 3.
    assert scaled.pow(4).mean().item() < 2.5


@pytest.mark.parametrize(("size", "highest"), [(64, 0), (256, 2), (4096, 6)])
def test_larger_batches_try_every_power_of_two(size: int, highest: int) -> None:
    rates = rates_at(artefact_of("zeroinit/table-2").settings["paper"]["effort"], size).rates
    assert [math.log2(rate) for rate in rates] == list(range(-6, highest + 1))


@pytest.mark.parametrize(
    ("reached", "verdict"),
    [
        # Nothing is learned at any rate.
        ({}, "holds"),
        # It trains below the grid, and not at its rates.
        ({-9: 0.9, -8: 0.6, -10: 0.7}, "fails"),
        # It learns a little, and more the lower the rate.
        ({-14: 0.14, -13: 0.13, -12: 0.12}, "inconclusive"),
        # So it does, but best at a rate inside.
        ({-14: 0.11, -13: 0.13, -12: 0.12}, "holds"),
    ],
)
def test_what_does_not_train_was_tried_below_the_grid(reached: Mapping[int, float], verdict: str) -> None:
    """ZeroInit, section 3: "the optimal learning rates are not at the boundary of our grid search"."""
    control = dict.fromkeys(range(-14, 1), 0.94)
    rows = [
        {"method": method, "rate": 2.0**exponent, "seed": seed, "chance_accuracy": 10.0}
        | {"outcome": "trained" if exponent in values else "diverged"}
        | {"test_accuracy": 100 * values.get(exponent, 0.1) + 0.1 * seed}
        for method, values in (("none", reached), ("batch_norm", control))
        for exponent in range(-14, 1)
        for seed in range(4)
    ]
    runs = Runs(pd.DataFrame(rows), pd.DataFrame(), (asked_by("skipinit/table-1")[0].sweep,))
    checked = runs.does_not_train("It fails.", against={"method": "batch_norm"}, method="none")
    assert checked.verdict == verdict


@pytest.mark.parametrize("name", ["skipinit/table-1", "skipinit/table-3", "zeroinit/table-2"])
@pytest.mark.parametrize("budget", ["small", "paper"])
def test_rates_of_the_depth_tables_extend_far_below_the_grid(name: str, budget: Budget) -> None:
    for asked in asked_by(name, budget):
        # Two cores have time for two rates beyond either end.
        assert (asked.rates.factor, asked.rates.extensions) == (2.0, 2 if budget == "small" else 8)


@pytest.mark.parametrize("trains", [True, False])
def test_figure_3_looks_at_100_layers(trains: bool, tmp_path: Path) -> None:
    """ "Not able to train with the same learning rate as BatchNorm past 100 layers": at 100 they still do."""

    def ending(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
        baseline = labels["method"] in ("LSUV", "sqrt(1/2)")
        fails = baseline and (depth_of(settings) > 100 or not trains)
        return UNTRAINED if fails else Ending(0.5)

    checks: Sequence[Any] = artefact_of("fixup/figure-3").checks(facts_of("fixup/figure-3", ending, tmp_path))
    at_limit = [check.verdict for check in checks if "100 layers are still trained" in check.claim]
    assert at_limit == ["holds" if trains else "fails"] * 2


def test_no_weights_bring_the_variance_of_a_block_with_an_identity_to_one() -> None:
    """Fixup, section 4.1 (2): of LSUV's layers each has unit variance; the sum then grows by the branch's."""
    torch.manual_seed(0)
    images = torch.randn(64, 3, 16, 16)
    network = convert(build_model("normless:wide_resnet(depth=16, width=1)"), "lsuv", images)
    sums: list[tuple[torch.Tensor, torch.Tensor]] = []
    for block in network.blocks:
        block.sum.register_forward_hook(lambda _, sides, output: sums.append(sides))
    with torch.no_grad():
        network.eval()(images)
    for skip, branch in sums:
        assert branch.var().item() == pytest.approx(1, abs=0.05)
        # The least variance that any factor on the branch's last weights leaves.
        slope = ((skip - skip.mean()) * (branch - branch.mean())).mean() / branch.var()
        assert (skip - slope * branch).var() > 0.9 * skip.var()
