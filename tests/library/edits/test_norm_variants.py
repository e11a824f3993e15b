"""Batch norms among other norms, of other libraries, of domains, and group norms of few values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

import normless as nl
from normless.errors import EvaluationOnlyWarning
from normless.models import resnet_cifar
from normless.nn import DomainBatchNorm, FrozenBatchNorm, GhostBatchNorm2d, using_domain

WIDTH = 8


class ConvolutionAndAttention(nn.Module):
    """A Conformer's order: layer norms around attention, a batch norm inside its convolution module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.attend = nn.Linear(5, WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.ahead, self.before, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH)
        self.conv, self.head = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.ahead(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        y = self.conv(self.before(x).transpose(1, 2))
        return self.head(x + torch.relu(self.norm(y)).transpose(1, 2))


def generator() -> nn.Module:
    down = [nn.Conv2d(3, WIDTH, 3), nn.InstanceNorm2d(WIDTH, affine=True), nn.ReLU()]
    return nn.Sequential(*down, nn.Conv2d(WIDTH, WIDTH, 3), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.Conv2d(WIDTH, 3, 1))


HYBRIDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], set[str]]] = {
    "conformer": (ConvolutionAndAttention, (4, 6, 5), {"ahead", "before"}),
    "generator": (generator, (4, 3, 9, 9), {"1"}),
}
SCHEMES = ["ghost_batch_norm(size=2)", "partial_batch_norm(mean=False)", "alternating_batch_norm"]


@pytest.mark.parametrize(
    ("name", "scheme"),
    [*((name, "group_norm(groups=2)") for name in HYBRIDS), *(("conformer", scheme) for scheme in SCHEMES)],
)
def test_batch_norms_change_and_other_norms_stay(name: str, scheme: str) -> None:
    build, shape, kept = HYBRIDS[name]
    model, x = build(), torch.randn(shape)
    net = nl.convert(model, scheme, x)
    plain = {nn.BatchNorm1d, nn.BatchNorm2d}
    assert not [path for path, one in net.named_modules() if type(one) in plain]
    listed = {change.path: change.what for change in nl.plan(model, scheme, x) if change.what.startswith("kept")}
    assert set(listed) == kept
    assert all("not a batch norm" in what for what in listed.values())
    for path in kept:
        assert type(net.get_submodule(path)) is type(model.get_submodule(path))
    if scheme.startswith("group"):
        torch.testing.assert_close(net(x)[:1], net(x[:1]), rtol=1e-4, atol=1e-5)


def test_a_batch_norm_in_forward_code_is_no_norm_to_keep() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(nn.functional.batch_norm(self.norm(self.conv(x)), None, None, training=True))

    with pytest.raises(nl.UnsupportedEditError, match=r"at :batch_norm"):
        nl.convert(Functional(), "group_norm(groups=2)", torch.randn(4, 3, 8, 8))


def pooled(width: int) -> nn.Module:
    pool = [nn.Conv2d(3, width, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*pool, nn.Flatten(), nn.Linear(width, 2))


@pytest.mark.parametrize(("width", "asked", "groups"), [(32, 32, 2), (8, 4, 1), (40, 20, 2)])
def test_a_group_norm_of_pooled_maps_has_groups_of_more_than_two_values(width: int, asked: int, groups: int) -> None:
    net = nl.convert(pooled(width), f"group_norm(groups={asked})", torch.randn(4, 3, 8, 8))
    assert net[2].num_groups == groups
    h = net[1](net[0](torch.randn(64, 3, 8, 8)))
    # Signs have one size; what is left varies.
    assert net[2](h).abs().std() > 0.1


@pytest.mark.parametrize("width", [1, 2])
def test_a_group_norm_of_too_few_values_is_refused(width: int) -> None:
    with pytest.raises(nl.UnsupportedEditError, match=rf"at 2: an example has {width} values there"):
        nl.convert(pooled(width), "group_norm", torch.randn(4, 3, 8, 8))


def test_where_training_fails_in_the_original_too_the_warning_says_so() -> None:
    with pytest.warns(EvaluationOnlyWarning, match="So does the original: the batch norm 2 .* two examples"):
        nl.convert(pooled(8), "ghost_batch_norm(size=1)", torch.randn(1, 3, 8, 8))


def trained(model: nn.Module, x: Tensor) -> nn.Module:
    with torch.no_grad():
        for one in model.modules():
            if isinstance(getattr(one, "running_mean", None), Tensor):
                one.running_mean.normal_()
                one.running_var.uniform_(0.5, 2)
                one.weight.uniform_(0.5, 2)
                one.bias.normal_()
    return model.eval()


FOREIGN: dict[str, Callable[[int], nn.Module]] = {
    "torchvision's frozen": torchvision.ops.FrozenBatchNorm2d,
    "timm's frozen": timm.layers.FrozenBatchNormAct2d,
    "synchronized": nn.SyncBatchNorm,
    "ghost": lambda width: GhostBatchNorm2d(width, 2),
    "ours": FrozenBatchNorm,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_norms_of_others_become_torchs_own_and_train(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 9, 9)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), FOREIGN[name](8), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(100, 2))
    model = trained(model, x)
    net = nl.convert(model, "plain_batch_norm", x)
    torch.testing.assert_close(net.eval()(x), model(x), rtol=1e-4, atol=1e-4)
    (norm,) = (one for one in net.modules() if type(one) is nn.BatchNorm2d)
    before = norm.running_mean.clone()
    net.train()(x).sum().backward()
    assert norm.weight.grad is not None
    assert not torch.equal(norm.running_mean, before)


def test_frozen_norms_compute_what_evaluation_did_and_load_as_torchvisions() -> None:
    x = torch.randn(2, 3, 32, 32)
    model = trained(torchvision.models.resnet18(num_classes=3), x)
    net = nl.convert(model, "frozen_batch_norm", x)
    torch.testing.assert_close(net.train()(x), model(x), rtol=1e-4, atol=1e-4)
    frozen = {path: one for path, one in net.named_modules() if isinstance(one, FrozenBatchNorm)}
    assert set(frozen) == {path for path, one in model.named_modules() if isinstance(one, nn.BatchNorm2d)}
    assert not [name for name, _ in net.named_parameters() if name.rpartition(".")[0] in frozen]
    for one in frozen.values():
        torchvision.ops.FrozenBatchNorm2d(one.num_features).load_state_dict(one.state_dict())
    del net.normless_scheme
    back = nl.convert(net, "plain_batch_norm", x)
    torch.testing.assert_close(back.eval()(x), model(x), rtol=1e-4, atol=1e-4)


def test_norms_are_synchronized_and_back() -> None:
    x = torch.randn(4, 3, 8, 8)
    model = trained(resnet_cifar(8), x)
    net = nl.convert(model, "sync_batch_norm")
    assert {type(one) for one in net.modules() if "BatchNorm" in type(one).__name__} == {nn.SyncBatchNorm}
    torch.testing.assert_close(net(x), model(x))


@pytest.mark.parametrize("build", [lambda: resnet_cifar(8), lambda: pooled(8)])
def test_domains_have_statistics_of_their_own(build: Callable[[], nn.Module]) -> None:
    x = torch.randn(4, 3, 32, 32)
    model = trained(build(), x)
    net = nl.convert(model, "domain_batch_norm(domains=3)", x)
    torch.testing.assert_close(net(x), model(x))
    norm = next(one for one in net.modules() if isinstance(one, DomainBatchNorm))
    net.train()
    with using_domain(net, 2):
        net(5 * x + 1)
        assert norm.domain == 2
    means = [one.running_mean for one in norm.norms]
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])
    torch.testing.assert_close(net.eval()(x), model(x))
    with pytest.raises(ValueError, match="0 to 2, got 3"), using_domain(net, 3):
        pass


class Selecting(nn.Module):
    """One of several norms by a number of its own, as networks for several domains have it."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norms, self.domain = nn.ModuleList([norm(8) for _ in range(3)]), 1

    def forward(self, x: Tensor) -> Tensor:
        return self.norms[self.domain](x)


def test_a_pointwise_function_does_not_leave_norms_of_other_domains() -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 8, 3), Selecting(nn.BatchNorm2d), nn.Conv2d(8, 2, 3)),
        torch.randn(4, 3, 8, 8),
    )
    for number, norm in enumerate(model[1].norms):
        nn.init.constant_(norm.weight, number + 1.0)
    net = nl.convert(model, "dyt(alpha=0.5)", x)
    for domain in range(3):
        net[1].domain = domain
        torch.testing.assert_close(net[:2](x), (domain + 1) * torch.tanh(0.5 * model[0](x)))


def test_a_norm_of_one_domain_is_not_folded_into_a_layer_that_all_read() -> None:
    x = torch.randn(4, 3, 8, 8)
    model = trained(nn.Sequential(nn.Conv2d(3, 8, 3), Selecting(nn.BatchNorm2d), nn.Conv2d(8, 2, 3)), x)
    folded, report = nl.fold(model, x)
    assert {fate.outcome for fate in report.norms} == {"affine"}
    for domain in range(3):
        folded[1].domain = model[1].domain = domain
        torch.testing.assert_close(folded(x), model(x), rtol=1e-4, atol=1e-4)
