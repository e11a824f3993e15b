"""Which norms are folded where, and that nothing but rounding changes; the oracle is torch's batch norm itself."""

from __future__ import annotations

import pytest
import torch
from fold_helpers import Net, fate, folded, randomize
from timm.layers import BatchNormAct2d, StdConv2d
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

import normless as nl
from normless.nn import FrozenAffine, GhostBatchNorm2d


def layer_then_norm(net: Net, x: Tensor) -> Tensor:
    return F.relu(net.norm(net.layer(x)))


def norm_then_layer(net: Net, x: Tensor) -> Tensor:
    return F.relu(net.layer(net.norm(x.sin())))


LINES = torch.randn(3, 4, 9).double()
IMAGES = torch.randn(3, 4, 7, 6).double()
VOLUMES = torch.randn(3, 4, 5, 6, 4).double()
VECTORS = torch.randn(3, 4).double()
BEFORE = {
    "linear": (nn.Linear(4, 6), nn.BatchNorm1d(6), VECTORS),
    "linear without bias": (nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), VECTORS),
    "conv1d": (nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6), LINES),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2, padding="valid", bias=False), nn.BatchNorm2d(6), IMAGES),
    "conv3d": (nn.Conv3d(4, 6, 3, padding="same"), nn.BatchNorm3d(6), VOLUMES),
    "grouped": (nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.BatchNorm2d(6), IMAGES),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8, affine=False), IMAGES),
    "reflecting": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(6), IMAGES),
    "transposed 1d": (nn.ConvTranspose1d(4, 6, 3, stride=2, bias=False), nn.BatchNorm1d(6), LINES),
    "transposed 2d": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(6), IMAGES),
    "transposed 3d": (nn.ConvTranspose3d(4, 6, 2, output_padding=1, stride=2), nn.BatchNorm3d(6), VOLUMES),
    "fused": (nn.Conv2d(4, 6, 1), BatchNormAct2d(6, act_layer=nn.PReLU, drop_layer=nn.Dropout2d), IMAGES),
    "ghost": (nn.Conv2d(4, 6, 1), GhostBatchNorm2d(6, ghost_size=2), IMAGES),
    "synchronized": (nn.Conv2d(4, 6, 1), nn.SyncBatchNorm(6), IMAGES),
}
BEHIND = {
    "linear": (nn.Linear(4, 6, bias=False), nn.BatchNorm1d(4), VECTORS),
    "conv1d": (nn.Conv1d(4, 6, 3, padding="valid"), nn.BatchNorm1d(4), LINES),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2, bias=False), nn.BatchNorm2d(4), IMAGES),
    "pointwise same": (nn.Conv2d(4, 6, 1, padding="same"), nn.BatchNorm2d(4), IMAGES),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(4), IMAGES),
    "conv3d": (nn.Conv3d(4, 6, 2), nn.BatchNorm3d(4), VOLUMES),
}
# Zeros around the input, or fewer inputs at the border, do not see a shift.
ONLY_WITHOUT_SHIFT = {
    "padded": (nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(4), IMAGES),
    "padded same": (nn.Conv2d(4, 6, 3, padding="same", groups=2), nn.BatchNorm2d(4), IMAGES),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(4), IMAGES),
}


@pytest.mark.parametrize("case", BEFORE)
def test_into_the_layer_before(case: str) -> None:
    layer, norm, x = BEFORE[case]
    new, report = folded(Net(layer_then_norm, layer=layer, norm=norm), x)
    assert fate(report, "norm") == "norm: folded into layer before it"
    assert type(new.layer) is type(layer)


@pytest.mark.parametrize("case", BEHIND)
def test_into_the_layer_behind(case: str) -> None:
    layer, norm, x = BEHIND[case]
    new, report = folded(Net(norm_then_layer, layer=layer, norm=norm), x)
    assert fate(report, "norm") == "norm: folded into layer after it"
    assert isinstance(new.norm, nn.Identity)


@pytest.mark.parametrize("case", ONLY_WITHOUT_SHIFT)
def test_not_past_a_border_with_a_shift(case: str) -> None:
    layer, norm, x = ONLY_WITHOUT_SHIFT[case]
    net = Net(norm_then_layer, layer=layer, norm=norm)
    _, report = folded(net, x)
    assert fate(report, "norm").startswith("norm: affine: it reads sin; layer pads its input")
    randomize(net, shift=False)
    _, report = folded(net, x)
    assert fate(report, "norm") == "norm: folded into layer after it"


def test_channels_are_followed_through_changes_of_layout() -> None:
    def tokens(net: Net, x: Tensor) -> Tensor:
        y = net.layer(x.transpose(1, 2))  # (B, L, C)
        first = net.norm(y.flatten(0, 1)).reshape_as(y)
        return net.behind(net.transposed(first.sin().permute(0, 2, 1)).transpose(1, 2))

    parts = {"layer": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4), "transposed": nn.BatchNorm1d(4)}
    _, report = folded(Net(tokens, **parts, behind=nn.Linear(4, 5)), LINES)
    assert fate(report, "norm") == "norm: folded into layer before it"
    assert fate(report, "transposed") == "transposed: folded into behind after it"


def conv() -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, padding=1)


def twice_read(net: Net, x: Tensor) -> Tensor:
    y = net.layer(x)
    return y + net.norm(y)


def norm_run_twice(net: Net, x: Tensor) -> Tensor:
    return net.norm(net.layer(net.norm(x)))


def layer_run_twice(net: Net, x: Tensor) -> Tensor:
    return net.layer(F.relu(net.norm(net.layer(x))))


def functional(net: Net, x: Tensor) -> Tensor:
    return net.norm(F.conv2d(x, net.layer.weight))


def activated(net: Net, x: Tensor) -> Tensor:
    return net.layer(F.relu(net.norm(x.sin())))


def dropped(net: Net, x: Tensor) -> Tensor:
    return net.norm(net.drop(net.layer(x)))


def overwritten(net: Net, x: Tensor) -> Tensor:
    h = x.sin()
    y = net.norm(h)
    h.add_(1)
    return net.layer(y) + h


KEPT_AS_AFFINE = {
    "read twice": (twice_read, conv(), "other operations read the output of conv2d of layer too"),
    "norm run twice": (norm_run_twice, conv(), "affine: the norm runs at several places"),
    "layer run twice": (layer_run_twice, conv(), "the weight of conv2d of layer is used at several places"),
    "functional": (functional, nn.Conv2d(4, 4, 3, bias=False), "does not run in the layer that owns the weight"),
    "activation": (activated, conv(), "affine: it reads sin; relu reads it"),
    "dropout": (dropped, conv(), "it reads dropout of drop"),
    "overwritten": (overwritten, nn.Conv2d(4, 4, 1), "values are overwritten in place before it is read"),
    "standardized": (layer_then_norm, StdConv2d(4, 4, 3), "is computed in the forward pass"),
    "weight norm": (layer_then_norm, weight_norm(conv()), "is computed in the forward pass"),
}


@pytest.mark.parametrize("case", KEPT_AS_AFFINE)
def test_else_it_is_an_affine_map_in_its_place(case: str) -> None:
    run, layer, reason = KEPT_AS_AFFINE[case]
    new, report = folded(Net(run, layer=layer, norm=nn.BatchNorm2d(4), drop=nn.Dropout(0.5)), IMAGES)
    assert report.counts == {"folded": 0, "affine": 1, "kept": 0}
    assert reason in fate(report, "norm")
    assert isinstance(new.norm, FrozenAffine)


def test_a_weight_that_a_penalty_reads_is_left_alone() -> None:
    class Penalized(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return self.norm(self.layer(x)), self.layer.weight.square().sum()

    _, report = folded(Penalized(layer_then_norm, layer=conv(), norm=nn.BatchNorm2d(4)), IMAGES)
    assert "the weight of conv2d of layer is used at several places" in fate(report, "norm")


def test_a_weight_that_is_scaled_in_the_forward_pass_is_left_alone() -> None:
    class Halved(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.weight * 0.5, self.bias)

    _, report = folded(Net(layer_then_norm, layer=Halved(4, 4, 3), norm=nn.BatchNorm2d(4)), IMAGES)
    assert "is computed in the forward pass" in fate(report, "norm")


def test_a_norm_in_a_checkpointed_region_is_folded() -> None:
    def run(net: Net, x: Tensor) -> Tensor:
        return checkpoint(lambda z: net.norm(net.layer(z)), x, use_reentrant=False)

    _, report = folded(Net(run, layer=conv(), norm=nn.BatchNorm2d(4)), IMAGES)
    assert fate(report, "norm") == "norm: folded into layer before it"


def test_what_only_train_mode_runs_is_folded_too() -> None:
    def auxiliary(net: Net, x: Tensor) -> Tensor:
        return net.layer(x).sin() + (net.norm(net.extra(x)) if net.training else 0)

    _, report = folded(Net(auxiliary, layer=conv(), extra=conv(), norm=nn.BatchNorm2d(4)), IMAGES)
    assert fate(report, "norm") == "norm: folded into extra before it"

    def only_in_training(net: Net, x: Tensor) -> Tensor:
        return net.norm(net.layer(x)) if net.training else net.layer(x)

    _, report = folded(Net(only_in_training, layer=conv(), norm=nn.BatchNorm2d(4)), IMAGES)
    assert "layer runs in a mode in which the norm does not" in fate(report, "norm")

    _, report = folded(Net(lambda net, x: net.layer(x), layer=conv(), norm=nn.BatchNorm2d(4)), IMAGES)
    assert fate(report, "norm") == "norm: affine: it does not run on these inputs"


def test_other_norms_are_kept() -> None:
    def run(net: Net, x: Tensor) -> Tensor:
        return F.layer_norm(net.group(net.norm(net.layer(x))), x.shape[1:])

    net = Net(run, layer=conv(), norm=nn.BatchNorm2d(4), group=nn.GroupNorm(2, 4))
    new, report = folded(net, IMAGES)
    assert report.counts == {"folded": 1, "affine": 0, "kept": 2}
    assert fate(report, "group") == "group: kept: it normalizes each example separately"
    assert str(report).startswith("3 norms: 1 folded, 0 affine, 2 kept\nnorm: folded into layer before it\n")
    assert isinstance(new.group, nn.GroupNorm)


def test_refusals_say_what_to_do() -> None:
    x = torch.randn(3, 4, 5, 5)
    with pytest.raises(nl.UnsupportedEditError, match=r"^1 is a BatchNorm2d without running statistics"):
        nl.fold(nn.Sequential(conv(), nn.BatchNorm2d(4, track_running_stats=False)), x)
    with pytest.raises(nl.UnsupportedEditError, match=r"normless\.freeze makes"):
        nl.fold(nn.BatchNorm2d(4), x)
    with pytest.raises(nl.UnresolvedStructureError, match=r"Sequential .*pass example inputs"):
        nl.fold(nn.Sequential(conv(), nn.BatchNorm2d(4)))

    def by_batch(net: Net, y: Tensor) -> Tensor:
        return F.batch_norm(net.layer(y), None, None, training=True)

    with pytest.raises(nl.UnsupportedEditError, match="forward code of the network normalizes by the statistics"):
        nl.fold(Net(by_batch, layer=conv()), x.double())


def test_one_layer_takes_the_norms_on_both_sides() -> None:
    def run(net: Net, x: Tensor) -> Tensor:
        return net.last(net.layer(net.first(x.sin())))

    net = Net(run, first=nn.BatchNorm2d(4), layer=nn.Conv2d(4, 6, 3, groups=2, bias=False), last=nn.BatchNorm2d(6))
    _, report = folded(net, IMAGES)
    assert [str(norm) for norm in report.norms] == [
        "first: folded into layer after it",
        "last: folded into layer before it",
    ]


def test_regrouped_channels_are_not_followed() -> None:
    def run(net: Net, x: Tensor) -> Tensor:
        return net.norm(net.layer(x).reshape(3, 4, 12))

    _, report = folded(Net(run, layer=nn.Conv1d(4, 6, 2), norm=nn.BatchNorm1d(4)), LINES)
    assert fate(report, "norm").startswith("norm: affine: it reads reshape")

    def mixed(net: Net, x: Tensor) -> Tensor:
        return net.norm(net.layer(x).transpose(1, 2))

    _, report = folded(Net(mixed, layer=nn.Conv1d(4, 9, 1), norm=nn.BatchNorm1d(9)), LINES)
    assert "the channels of layer are not the norm's" in fate(report, "norm")
