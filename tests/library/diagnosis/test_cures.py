"""Cures of residual and plain networks: proposed, tried and applied."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from diagnosed import diagnose, images, kinds, vectors
from torch import Tensor, nn
from torch.optim import SGD

import normless as nl
from normless.diagnosis import treat
from normless.diagnosis.cures import FREEZE
from normless.models import wide_resnet
from normless.models.transformer import AttentionBlock, FeedForwardBlock


def test_torchvisions_resnet50_without_norms_and_with_skipinit() -> None:
    """The scenario of `normless diagnose`: the signal grows, and SkipInit stops that."""
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.resnet50()
    inputs, targets = images(8, 32)
    bare = nl.convert(model, "none", inputs)
    diagnosis = diagnose(bare, (inputs, targets))
    assert kinds(diagnosis) == ["growing_variance"]
    growth = diagnosis.findings[0]
    table = nl.probe(bare, (inputs, targets), ["signal"]).signal
    moments = table["sum_second_moment"].to_numpy()
    assert growth.evidence["second_moment_after"] == pytest.approx(moments.max(), rel=1e-6)
    assert growth.where[-1] == table["name"][int(moments.argmax())]
    assert diagnosis.scheme == "skipinit"
    with pytest.raises(nl.AlreadyConvertedError):
        treat(bare, (inputs, targets), diagnosis)
    treatment = treat(bare, (inputs, targets), diagnosis, original=model)
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)
    assert diagnose(nl.convert(model, "skipinit", inputs), (inputs, targets)).healthy
    verdicts = treatment.table.set_index("check")
    assert verdicts.loc["signal along the skip path", "verdict_before"] == "wrong"
    assert verdicts.loc["signal along the skip path", "verdict_after"] == "fine"
    assert verdicts.loc["optimizer", "verdict_after"] == "not asked"


class PostNorm(nn.Module):
    """x ← norm(x + W₂ sign(W₁ x)), many times: branches as large as the skip path, which pass no gradient."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.second = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)
        for layer in [*self.first, *self.second]:
            nn.init.normal_(layer.weight, std=width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        for first, second, norm in zip(self.first, self.second, self.norms, strict=True):
            x = norm(x + second(torch.sign(first(x))))
        return self.head(x)


def test_a_deep_post_norm_network_loses_its_gradient() -> None:
    """A norm after a sum of two equal variances divides the skip path's gradient by √2, 40 times."""
    torch.manual_seed(0)
    found = diagnose(PostNorm(40, 64), vectors(features=64)).findings
    assert [finding.kind for finding in found] == ["vanishing_gradient"]
    assert found[0].evidence["ratio_per_block"] == pytest.approx(2**0.5, rel=0.1)
    assert found[0].cure.schemes[0] in {"deepnorm", "skipinit"}
    healthy = diagnose(PostNorm(4, 64), vectors(features=64))
    assert healthy.healthy, str(healthy)


def test_admin_cures_a_deep_post_norm_network() -> None:
    torch.manual_seed(0)
    network, batch = PostNorm(40, 64), vectors(features=64)
    before = diagnose(network, batch)
    assert "admin" in before.findings[0].cure.schemes
    assert "peri_norm" not in before.findings[0].cure.schemes
    treatment = treat(network, batch, before, scheme="admin")
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)


class Attending(nn.Module):
    """x + f(N(x)) with attention and feed-forward in turn, N a layer norm or nothing."""

    def __init__(self, layers: int, width: int = 32, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            self.blocks.append(AttentionBlock(width, 2, "pre", 0.0))
            self.blocks.append(FeedForwardBlock(width, 2 * width, "pre", 0.0))
        for block in self.blocks:
            block.norm = norm(width)
        self.classifier = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)[0] if isinstance(block, AttentionBlock) else block(x)
        return self.classifier(x.mean(1))


def sequences() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 6, 32, generator=generator), torch.arange(16) % 10


def test_depth_mup_cures_a_deep_transformer_without_norms() -> None:
    torch.manual_seed(0)
    network = Attending(40, norm=lambda _: nn.Identity())
    for block in network.blocks[1::2]:
        nn.init.normal_(block.linear1.weight, std=(2 / 32) ** 0.5)
        nn.init.normal_(block.linear2.weight, std=(1 / 64) ** 0.5)
    before = diagnose(network, sequences())
    growth = next(finding for finding in before.findings if finding.kind == "growing_variance")
    assert "depth_mup" in growth.cure.schemes
    assert "peri_norm" not in growth.cure.schemes
    treatment = treat(network, sequences(), before, scheme="depth_mup")
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)


def test_peri_norm_cures_a_pre_norm_transformer_whose_activations_grow() -> None:
    """Branches that grow with depth, as training makes them, add to the stream four times what they did before."""
    torch.manual_seed(0)
    network = Attending(12)
    with torch.no_grad():
        for number, block in enumerate(network.blocks):
            last = block.attention.output if isinstance(block, AttentionBlock) else block.linear2
            last.weight.mul_(2.0**number)
    before = diagnose(network, sequences())
    growth = next(finding for finding in before.findings if finding.kind == "growing_variance")
    assert growth.cure.schemes[0] == "peri_norm"
    assert "'peri_norm'" in growth.cure.words
    treatment = treat(network, sequences(), before, scheme="peri_norm")
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)


def plain(depth: int, activation: Callable[[], nn.Module] = nn.ReLU, norm: bool = False) -> nn.Module:
    """Layers of 64 features with He's variance, one after the other."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers.append(nn.Linear(64, 64))
        nn.init.normal_(layers[-1].weight, std=(2 / 64) ** 0.5)
        layers.extend([nn.BatchNorm1d(64)] if norm else [])
        layers.append(activation())
    return nn.Sequential(*layers, nn.Linear(64, 10))


def test_tailored_activations_cure_a_plain_network_that_makes_examples_alike() -> None:
    network, (inputs, targets) = plain(100), vectors(features=64)
    before = diagnose(network, (inputs, targets))
    assert kinds(before) == ["alike_examples"]
    found = before.findings[0]
    last = network[:-1](inputs).detach()
    pairs = [F.cosine_similarity(last[i], last[j], 0) for i in range(32) for j in range(i)]
    assert found.evidence["correlation_after"] == pytest.approx(float(torch.stack(pairs).mean()), abs=1e-6)
    assert found.evidence["layers"] == 101
    assert found.where == ("200",)
    assert before.scheme == "tailored_activations"
    treatment = treat(network, (inputs, targets), before)
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)


def test_group_norm_and_frozen_norms_are_tried_where_a_batch_has_two_examples() -> None:
    """Cures are in the order of the loss that the same steps of each reach; a frozen norm is no scheme."""
    torch.manual_seed(0)
    network, batch = wide_resnet(10, 1), images(2)
    optimizer = SGD(network.parameters(), lr=0.01, momentum=0.9)
    cure = diagnose(network, batch, optimizer=optimizer, trial_steps=10).findings[0].cure
    assert {"group_norm", FREEZE} <= set(cure.losses)
    assert list(cure.losses.values()) == sorted(cure.losses.values())
    assert cure.schemes == tuple(name for name in cure.losses if name != FREEZE)
    # The loss of frozen norms by the steps themselves, at the rate that the trial preferred.
    reached = []
    for rate in (0.01, 0.001, 0.0001, 0.1):
        copied = nl.freeze(network).train()
        steps = SGD(copied.parameters(), lr=rate, momentum=0.9)
        losses = []
        for _ in range(11):
            loss = F.cross_entropy(copied(batch[0]), batch[1])
            losses.append(loss.item())
            steps.zero_grad()
            loss.backward()
            steps.step()
        reached.append(sum(losses[-3:]) / 3)
    assert any(cure.losses[FREEZE] == pytest.approx(one, rel=1e-4) for one in reached)


def test_a_norm_is_what_normalizes_and_not_what_is_called_so() -> None:
    class NormalLayer(nn.Linear):
        """No norm."""

    torch.manual_seed(0)
    inputs, targets = vectors(64)
    for first, found in ((NormalLayer(50, 50), ["unscaled_inputs"]), (nn.LayerNorm(50), [])):
        network = nn.Sequential(first, nn.Linear(50, 10))
        assert [one for one in kinds(diagnose(network, (100 * inputs, targets))) if one == "unscaled_inputs"] == found


def test_weight_standardization_cures_statistics_over_few_examples() -> None:
    torch.manual_seed(0)
    network = wide_resnet(10, 1)
    before = diagnose(network, images(2))
    treatment = treat(network, images(2), before, scheme="weight_standardization")
    assert "weight_standardization" in before.findings[0].cure.schemes
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)


@pytest.mark.parametrize("network", [plain(20), plain(20, norm=True)])
def test_plain_networks_that_tell_examples_apart(network: nn.Module) -> None:
    diagnosis = diagnose(network, vectors(features=64))
    assert diagnosis.healthy, str(diagnosis)
    assert "signal of the layers" in [check.name for check in diagnosis.checks if check.asked]
