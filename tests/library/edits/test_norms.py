"""Norms removed, replaced and moved: where, and that everything else stays."""

from __future__ import annotations

import pytest
import torch
from edit_helpers import added, altered, edited, images, randomized, removed, retyped
from torch import Tensor, nn

import normless as nl
from normless.conversion import scheme_of
from normless.edits import NormOnSkip, OnlyFinalNorm, OnlyTopNorm, RemoveNorms, ReplaceNorms
from normless.models import dense, resnet_cifar, transformer, wide_resnet
from normless.nn import (
    AlternatingBatchNorm1d,
    AlternatingBatchNorm2d,
    GhostBatchNorm1d,
    GhostBatchNorm2d,
    PartialBatchNorm1d,
    PartialBatchNorm2d,
    ResidualSum,
)
from normless.residual import BlockStructure, Structure

WIDE_NORMS = [*(f"blocks.{index}.norm{place}" for index in range(3) for place in (1, 2)), "norm"]
STATE = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


class Signals(nn.Module):
    """A residual network of one-dimensional convolutions: (B, 2, T) to (B, 3)."""

    def __init__(self, convolution: type[nn.Module] = nn.Conv1d, norm: type[nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.stem = convolution(2, 4, 3, padding=1)
        self.block = nn.Module()
        self.block.norm = norm(4)
        self.block.conv = convolution(4, 4, 3, padding=1)
        self.block.sum = ResidualSum()
        self.classifier = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = self.block.sum(h, self.block.conv(self.block.norm(h)))
        return self.classifier(h.flatten(2).mean(2))

    def residual_structure(self) -> Structure:
        return Structure(["stem"], [("block", BlockStructure(branch=["norm", "conv"]))], ["classifier"])


def test_remove_norms_takes_every_norm_and_nothing_else() -> None:
    model = randomized(wide_resnet(10, 1))
    net = edited(model, RemoveNorms())
    assert removed(model, net) == {f"{path}.{name}" for path in WIDE_NORMS for name in STATE}
    assert not added(model, net) | altered(model, net)
    assert retyped(model, net) == dict.fromkeys(WIDE_NORMS, "Identity")


FAMILIES = {
    "ghost": ((("ghost_size", 3),), GhostBatchNorm2d, GhostBatchNorm1d),
    "partial": ((("mean", True),), PartialBatchNorm2d, PartialBatchNorm1d),
    "alternating": ((), AlternatingBatchNorm2d, AlternatingBatchNorm1d),
    "group": ((("groups", 2),), nn.GroupNorm, nn.GroupNorm),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("images_or_vectors", [0, 1], ids=["2d", "1d"])
def test_replace_norms_keeps_gamma_beta_and_statistics(family: str, images_or_vectors: int) -> None:
    options, *kinds = FAMILIES[family]
    model = randomized([wide_resnet(10, 1), dense(3, 8, in_features=4)][images_or_vectors]).double().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eps, module.momentum = 1e-3, 0.3
    net = edited(model, ReplaceNorms(family, options))
    paths = set(nl.residual_map(model).norms)
    assert set(retyped(model, net)) == paths
    assert not altered(model, net)
    for path in paths:
        norm = net.get_submodule(path)
        assert type(norm) is kinds[images_or_vectors], path
        assert norm.weight.dtype is torch.float64
        assert not norm.training
        if family != "group":
            assert (norm.eps, norm.momentum) == (1e-3, 0.3)
    statistics = {name for name in removed(model, net) if name.endswith(STATE[2:])}
    assert removed(model, net) == statistics
    assert bool(statistics) == (family == "group")
    if family in ("ghost", "partial", "alternating"):
        x = images().double() if images_or_vectors == 0 else torch.randn(6, 4, dtype=torch.float64)
        torch.testing.assert_close(net(x), model(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("groups", "expected"), [(32, [16, 32, 32]), (8, [8, 8, 8]), (24, [8, 8, 8])])
def test_group_norm_has_the_greatest_common_divisor_of_groups(groups: int, expected: list[int]) -> None:
    net = nl.convert(resnet_cifar(8), f"group_norm(groups={groups})")
    assert [block.norm1.num_groups for block in net.blocks] == expected


@pytest.mark.parametrize("place", ["after_sum", "skip_path"])
def test_norm_on_skip_adds_one_norm_a_block(place: str) -> None:
    model = randomized(wide_resnet(10, 1)).eval()
    net = edited(model, NormOnSkip(place))
    name = "norm_total" if place == "after_sum" else "norm_skip"
    assert added(model, net) == {f"blocks.{index}.sum.{name}.{part}" for index in range(3) for part in STATE}
    assert not removed(model, net) | altered(model, net)
    assert [getattr(block.sum, name).num_features for block in net.blocks] == [16, 32, 64]
    x = torch.randn(4, 16, 8, 8)
    old, new = model.train().blocks[0], net.train().blocks[0]
    branch = old.conv2(torch.relu(old.norm2(old.conv1(torch.relu(old.norm1(x))))))
    norm = nn.BatchNorm2d(16)
    expected = norm(x + branch) if place == "after_sum" else norm(x) + branch
    torch.testing.assert_close(new(x), expected, rtol=1e-4, atol=1e-5)
    norms = nl.residual_map(net).blocks[0].norms
    assert f"blocks.0.sum.{name}" in norms


@pytest.mark.parametrize("scheme", ["norm_on_skip", "norm_on_skip(place=skip_path)", "only_top_norm"])
@pytest.mark.parametrize(("convolution", "sides"), [(nn.Conv1d, 1), (nn.Conv3d, 3)])
def test_added_norms_fit_the_number_of_axes(scheme: str, convolution: type[nn.Module], sides: int) -> None:
    model = Signals(convolution, nn.BatchNorm1d if sides == 1 else nn.BatchNorm3d)
    net = nl.convert(model, scheme)
    assert net(torch.randn(4, 2, *[5] * sides)).isfinite().all()


def test_only_final_norm_is_on_the_features_of_the_classifier() -> None:
    model = randomized(resnet_cifar(8))
    net = edited(model, OnlyFinalNorm())
    assert list(nl.residual_map(net).norms) == ["classifier.before"]
    assert type(net.classifier.before) is nn.BatchNorm1d
    assert net.classifier.before.num_features == 64
    assert added(model, net) == {f"classifier.before.{part}" for part in STATE}
    assert not altered(model, net)
    features = torch.randn(9, 64) * 5 + 3
    expected = net.classifier.weight @ nn.BatchNorm1d(64)(features).T + net.classifier.bias[:, None]
    torch.testing.assert_close(net.classifier(features), expected.T, rtol=1e-4, atol=1e-4)


def test_only_top_norm_is_behind_the_last_relu_of_a_cifar_resnet() -> None:
    model = resnet_cifar(8)
    net = edited(model, OnlyTopNorm())
    assert len(nl.residual_map(net).norms) == 1
    seen: dict[str, Tensor] = {}
    net.pool.register_forward_hook(lambda _, inputs, output: seen.update(features=inputs[0]))
    net.blocks[-1].sum.register_forward_hook(lambda _, inputs, output: seen.update(total=output))
    net(images(8))
    torch.testing.assert_close(seen["features"], nn.BatchNorm2d(64)(torch.relu(seen["total"])))


@pytest.mark.parametrize("scheme", ["ghost_batch_norm", "group_norm"])
def test_a_norm_without_gamma_and_beta_gains_none_and_keeps_its_epsilon(scheme: str) -> None:
    model = resnet_cifar(8)
    model.norm = nn.BatchNorm2d(16, affine=False, eps=1e-2)
    net = nl.convert(model, scheme)
    assert list(net.norm.parameters()) == []
    assert net.norm.eps == 1e-2


class PreActivation(nn.Module):
    """A pre-activation block whose ReLU overwrites its input, which only the norm before it makes harmless."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.stem, self.f, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.relu = None if functional else nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        y = self.norm(h)
        y = torch.relu_(y) if self.relu is None else self.relu(y)
        return h + self.f(y)


@pytest.mark.parametrize("functional", [True, False])
def test_a_relu_in_place_no_longer_overwrites_the_skip_path_once_its_norm_is_gone(functional: bool) -> None:
    model, x = PreActivation(functional), torch.randn(5, 4)
    net = nl.convert(model, "none", x)
    h = model.stem(x)
    torch.testing.assert_close(net(x), h + model.f(torch.relu(h)))
    assert functional or model.relu.inplace


class FusedNorm(nn.BatchNorm1d):
    """A norm that holds the activation behind it, as many zoos write them."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.drop, self.act = nn.Identity(), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class Bending(nn.Module):
    """EvoNorm's kind: a norm that is its own nonlinearity."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias, self.v = (
            nn.Parameter(torch.ones(4)),
            nn.Parameter(torch.zeros(4)),
            nn.Parameter(torch.ones(4)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.v * x) / x.std(0, keepdim=True) * self.weight + self.bias


def test_what_a_norm_holds_besides_stays_under_its_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), FusedNorm(4), nn.Linear(4, 2))
    x = torch.randn(5, 4)
    net = nl.convert(model, "none(keep_scale=False)", x)
    torch.testing.assert_close(net(x), model[2](nn.functional.gelu(model[0](x))))
    assert net.get_submodule("1.act") is not model[1].act
    assert [name for name, _ in net.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_norm_that_bends_its_input_by_itself_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Bending())
    with pytest.raises(nl.UnsupportedEditError, match=r"at 1: a Bending .*, with 1\.v"):
        nl.convert(model, "none", torch.randn(5, 4))


@pytest.mark.parametrize("scheme", ["layer_norm", "as_written"])
def test_a_transformer_as_it_is_written_stays_so(scheme: str) -> None:
    model = transformer(vocabulary=11, layers=1, width=8, heads=2, feed_forward=8, dropout=0.0)
    net = nl.convert(model, scheme)
    assert scheme_of(net) == scheme
    assert not added(model, net) | altered(model, net) | removed(model, net)
    assert nl.plan(model, scheme) == ()


def test_batch_norms_are_no_layer_norms() -> None:
    with pytest.raises(nl.UnsupportedEditError, match=r"at blocks\.0\.norm1: .*group_norm\("):
        nl.convert(wide_resnet(10, 1), "layer_norm")
    grouped = nl.convert(wide_resnet(10, 1), "group_norm(groups=1)")
    assert not [one for one in grouped.modules() if isinstance(one, nn.BatchNorm2d)]
    assert nl.convert(Signals(norm=lambda width: nn.GroupNorm(1, width)), "layer_norm").block.norm.num_groups == 1


@pytest.mark.parametrize("scheme", ["only_final_norm", "as_written + HeadDropout()"])
def test_without_a_classifier_an_edit_of_it_is_refused(scheme: str) -> None:
    class Headless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.first(x)

    with pytest.raises(nl.UnsupportedEditError, match="Headless: no classifier"):
        nl.convert(Headless(), scheme, torch.randn(2, 4))


class ReadsParameters(nn.Module):
    """Forward code that takes its dtype from norms, as state space models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.inner = nn.Module()
        self.inner.norm = nn.LayerNorm(4)
        self.layer, self.norm2, self.out = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.layer(self.inner.norm(x.to(self.inner.norm.weight.dtype)).relu())
        return self.out(self.norm2(x)) * self.inner.norm.bias.new_ones(2)


def test_forward_code_may_read_the_parameters_of_a_removed_norm() -> None:
    model = ReadsParameters()
    nn.init.normal_(model.inner.norm.weight)
    x = torch.randn(3, 4)
    net = nl.convert(model, "skipinit(alpha=1)", x)
    h = model.embed(x)
    torch.testing.assert_close(net(x), model.out(h + model.layer(h.relu())))
    assert isinstance(net.inner.norm, nn.Identity)
    assert torch.equal(net.inner.norm.weight, torch.ones(4))
    assert torch.equal(net.inner.norm.bias, torch.zeros(4))
    assert not any("norm" in name for name in net.state_dict())
    assert not list(net.norm2.buffers()), "nothing reads its parameters"
    assert net.double()(x.double()).dtype == torch.float64
