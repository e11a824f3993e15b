"""Cures that were tried, and the evidence of trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diagnosed import diagnose, images, kinds, vectors
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import normless as nl
from normless.diagnosis import Treatment, treat
from normless.diagnosis.cures import FREEZE, _ranked
from normless.diagnosis.examination import lowest_of_constants
from normless.diagnosis.findings import Cure
from normless.diagnosis.steps import Trial
from normless.models import wide_resnet
from normless.models.transformer import AttentionBlock, FeedForwardBlock


def assert_cured(*args: Any, **options: Any) -> Treatment:
    """Return what `treat` returns, with a diagnosis after it that has no findings."""
    treatment = treat(*args, **options)
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)
    return treatment


@pytest.mark.slow
def test_torchvisions_resnet50_without_norms_and_with_skipinit() -> None:
    """The scenario of `normless diagnose`: the signal grows, and SkipInit stops that."""
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model, batch = torchvision.models.resnet50(), images(8, 32)
    bare = nl.convert(model, "none", batch[0])
    diagnosis = diagnose(bare, batch)
    assert kinds(diagnosis) == ["growing_variance"]
    growth = diagnosis.findings[0]
    table = nl.probe(bare, batch, ["signal"]).signal
    moments = table["sum_second_moment"].to_numpy()
    assert growth.evidence["second_moment_after"] == pytest.approx(moments.max(), rel=1e-6)
    assert growth.where[-1] == table["name"][int(moments.argmax())]
    assert diagnosis.scheme == "skipinit"
    with pytest.raises(nl.AlreadyConvertedError):
        treat(bare, batch, diagnosis)
    verdicts = assert_cured(bare, batch, diagnosis, original=model).table.set_index("check")
    assert [*verdicts.loc["signal along the skip path"][["verdict_before", "verdict_after"]]] == ["wrong", "fine"]
    assert verdicts.loc["optimizer", "verdict_after"] == "not asked"


class PostNorm(nn.Module):
    """x ← norm(x + W₂ sign(W₁ x)), many times: branches as large as the skip path, which pass no gradient."""

    def __init__(self, depth: int, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.ModuleList(nn.Linear(width, width).requires_grad_(False) for _ in range(depth))
        self.second = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)
        for layer in [*self.first, *self.second]:
            nn.init.normal_(layer.weight, std=width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        for first, second, norm in zip(self.first, self.second, self.norms, strict=True):
            x = norm(x + second(torch.sign(first(x))))
        return self.head(x)


def test_a_deep_post_norm_network_loses_its_gradient_and_admin_cures_it() -> None:
    """A norm after a sum of two equal variances divides the skip path's gradient by √2, 40 times."""
    network, batch = PostNorm(40), vectors(features=64)
    before = diagnose(network, batch)
    assert kinds(before) == ["vanishing_gradient"]
    assert before.findings[0].evidence["ratio_per_block"] == pytest.approx(2**0.5, rel=0.1)
    schemes = before.findings[0].cure.schemes
    assert schemes[0] in {"deepnorm", "skipinit"}
    assert "admin" in schemes
    assert "peri_norm" not in schemes
    assert_cured(network, batch, before, scheme="admin")
    assert diagnose(PostNorm(4), batch).healthy


def two_blocks() -> tuple[nn.Module, nn.Module]:
    return AttentionBlock(32, 2, "pre", 0.0), FeedForwardBlock(32, 64, "pre", 0.0)


class Attending(nn.Module):
    """x + f(N(x)) with attention and feed-forward in turn, N a layer norm or nothing."""

    def __init__(self, layers: int, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(block for _ in range(layers) for block in two_blocks())
        for block in self.blocks:
            block.norm = norm(32)
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)[0] if isinstance(block, AttentionBlock) else block(x)
        return self.classifier(x.mean(1))


def without_norms() -> nn.Module:
    network = Attending(24, norm=lambda _: nn.Identity())
    for block in network.blocks[1::2]:
        nn.init.normal_(block.linear1.weight, std=(2 / 32) ** 0.5)
        nn.init.normal_(block.linear2.weight, std=(1 / 64) ** 0.5)
    return network


def with_growing_branches() -> nn.Module:
    """Branches that grow with depth, as training makes them, add to the stream four times what they did before."""
    network = Attending(12)
    with torch.no_grad():
        for number, block in enumerate(network.blocks):
            last = block.attention.output if isinstance(block, AttentionBlock) else block.linear2
            last.weight.mul_(2.0**number)
    return network


def growth_of(network: nn.Module, scheme: str) -> tuple[str, ...]:
    """Return the schemes that are offered for an activation that grows; the scheme cures it."""
    source = torch.Generator().manual_seed(1)
    batch = torch.randn(16, 6, 32, generator=source), torch.arange(16) % 10
    before = diagnose(network, batch)
    assert_cured(network, batch, before, scheme=scheme)
    return next(finding for finding in before.findings if finding.kind == "growing_variance").cure.schemes


def test_transformers_whose_activations_grow_are_cured() -> None:
    schemes = growth_of(without_norms(), "depth_mup")
    assert "depth_mup" in schemes
    assert "peri_norm" not in schemes
    assert growth_of(with_growing_branches(), "peri_norm")[0] == "peri_norm"


def plain(depth: int, norm: bool = False) -> nn.Module:
    """Layers of 64 features with He's variance, one after the other."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(64, 64), *([nn.BatchNorm1d(64)] if norm else []), nn.ReLU()]
        nn.init.normal_(layers[-2 - norm].weight, std=(2 / 64) ** 0.5)
    return nn.Sequential(*layers, nn.Linear(64, 10))


def test_tailored_activations_cure_a_plain_network_that_makes_examples_alike() -> None:
    network, (inputs, targets) = plain(100), vectors(features=64)
    before = diagnose(network, (inputs, targets))
    assert kinds(before) == ["alike_examples"]
    found = before.findings[0]
    last = network[:-1](inputs).detach()
    pairs = [F.cosine_similarity(last[i], last[j], 0) for i in range(32) for j in range(i)]
    assert found.evidence["correlation_after"] == pytest.approx(float(torch.stack(pairs).mean()), abs=1e-6)
    assert (found.evidence["layers"], found.where) == (101, ("200",))
    assert before.scheme == "tailored_activations"
    assert_cured(network, (inputs, targets), before)


@pytest.mark.parametrize("norm", [False, True])
def test_plain_networks_that_tell_examples_apart(norm: bool) -> None:
    diagnosis = diagnose(plain(20, norm), vectors(features=64))
    assert diagnosis.healthy, str(diagnosis)
    assert "signal of the layers" in [check.name for check in diagnosis.checks if check.asked]


def test_group_norm_and_frozen_norms_are_tried_where_a_batch_has_two_examples() -> None:
    """Cures are in the order of the loss that the same steps of each reach; a frozen norm is no scheme."""
    torch.manual_seed(0)
    network, batch = wide_resnet(10, 1), images(2)
    optimizer = SGD(network.parameters(), lr=0.01, momentum=0.9)
    cure = diagnose(network, batch, optimizer=optimizer, trial_steps=10).findings[0].cure
    assert {"group_norm", FREEZE} <= set(cure.losses)
    assert list(cure.losses.values()) == sorted(cure.losses.values())
    assert cure.schemes == tuple(name for name in cure.losses if name != FREEZE)
    # The loss of frozen norms by 60 steps themselves, at the rate that the trial preferred.
    reached = []
    for rate in (0.01, 0.001, 0.0001, 0.1):
        copied = nl.freeze(network).train()
        steps = SGD(copied.parameters(), lr=rate, momentum=0.9)
        losses = []
        for _ in range(61):
            loss = F.cross_entropy(copied(batch[0]), batch[1])
            losses.append(loss.item())
            steps.zero_grad()
            loss.backward()
            steps.step()
        reached.append(sum(losses[-3:]) / 3)
    assert any(cure.losses[FREEZE] == pytest.approx(loss, rel=1e-4) for loss in reached)


def test_a_norm_is_what_normalizes_and_not_what_is_called_so() -> None:
    class NormalLayer(nn.Linear):
        """No norm."""

    torch.manual_seed(0)
    inputs, targets = vectors(64)
    for first, is_norm in ((NormalLayer(50, 50), False), (nn.LayerNorm(50), True)):
        found = kinds(diagnose(nn.Sequential(first, nn.Linear(50, 10)), (100 * inputs, targets)))
        assert ("unscaled_inputs" in found) != is_norm


def test_weight_standardization_cures_statistics_over_few_examples() -> None:
    torch.manual_seed(0)
    network = wide_resnet(10, 1)
    before = diagnose(network, images(2))
    assert "weight_standardization" in before.findings[0].cure.schemes
    assert_cured(network, images(2), before, scheme="weight_standardization")


def test_the_loss_of_the_best_constant_outputs() -> None:
    """The entropy of the labels, the variance of numbers, both for outputs that are far off, as logits or not."""
    labels = torch.tensor([0] * 24 + [1] * 8)
    entropy = float(torch.distributions.Categorical(torch.tensor([0.75, 0.25])).entropy())
    numbers = torch.arange(32.0)[:, None]
    rates = (numbers > 23).float()
    for outputs, targets, loss, expected in (
        (1e4 * torch.randn(32, 2), labels, lambda z: F.cross_entropy(z, labels), entropy),
        (100 * torch.randn(32, 1), numbers, lambda z: F.mse_loss(z, numbers), float(numbers.var(correction=0))),
        (torch.rand(32, 1), rates, lambda z: F.binary_cross_entropy(z, rates), entropy),
        (torch.randn(4, 2, 8), labels.view(4, 8), lambda z: F.cross_entropy(z, labels.view(4, 8)), entropy),
        (torch.randn(4, 8, 2), labels.view(4, 8), lambda z: F.cross_entropy(z.flatten(0, 1), labels), entropy),
    ):
        assert lowest_of_constants(loss, outputs, targets) == pytest.approx(expected, rel=1e-2)


def test_the_cure_names_what_won() -> None:
    cure = Cure("use larger batches", ("group_norm", FREEZE, "skipinit"))
    trials = {"group_norm": Trial(0.1, (2.0, 1.5, 1.0, 1.0)), FREEZE: Trial(0.1, (2.0, 0.5, 0.1, 0.1))}
    ranked = _ranked(cure, trials)
    assert "nl.freeze(model)" in ranked.words
    assert "group_norm" not in ranked.words
    assert ranked.schemes == ("group_norm",)
    assert "none of group_norm" in _ranked(cure, {}).words
    rate = _ranked(cure, trials, Trial(0.3, (2.0, 0.1, 0.05, 0.05)))
    assert "a learning rate of 0.3" in rate.words
    assert not rate.schemes
    assert _ranked(cure, trials, Trial(0.3, (2.0, 1.2, 1.2, 1.2))).words == ranked.words


def test_no_scheme_is_named_that_is_refused() -> None:
    """A network without a residual map, one that fits, and one that carries a scheme."""

    class Unmapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 10)
            self._modules["half"] = nn.ReLU()  # the name of a method

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self._modules["half"](self.norm(self.conv(x))).mean((2, 3)))

    torch.manual_seed(0)
    for network, names in ((Unmapped(), False), (wide_resnet(10, 1), True)):
        (found,) = diagnose(network, images(2)).findings
        assert bool(found.cure.schemes) is names
        assert ("nl.convert(model" in found.cure.words) is names
        for scheme in found.cure.schemes:
            nl.convert(network, scheme, images(2)[0])
    bare = nl.convert(nn.Sequential(nn.Flatten(), *[wide_resnet(10, 1).classifier]), "none", torch.randn(2, 64))
    assert "nl.convert(model" not in str(diagnose(bare, (torch.randn(8, 64), torch.arange(8))))


class Linear(nn.Module):
    """Sums of branches, and nothing between them."""

    def __init__(self) -> None:
        super().__init__()
        parts = ((nn.BatchNorm1d(50), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 50)) for _ in range(3))
        self.branches = nn.ModuleList(nn.Sequential(*part) for part in parts)
        self.head = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        for branch in self.branches:
            x = x + branch(x)
        return self.head(x)


@pytest.mark.parametrize("scheme", ["skipinit", "rezero", "fixup"])
def test_branches_that_start_at_zero_are_not_linear(scheme: str) -> None:
    """Without its branches a network of linear skip paths is linear; they open with the first step."""
    torch.manual_seed(0)
    found = diagnose(nl.convert(Linear(), scheme, torch.randn(4, 50)), vectors())
    assert not kinds(found), str(found)
