"""Which norms are folded or frozen where, and that nothing but rounding changes; the oracle is torch's batch norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fold_helpers import Net, fate, folded, randomize
from timm.layers import BatchNormAct2d, SplitBatchNorm2d, StdConv2d  # type: ignore[attr-defined]
from timm.layers.norm_act import SyncBatchNormAct
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

import normless as nl
from normless.nn import FrozenAffine, GhostBatchNorm2d, PartialBatchNorm2d

Run = Callable[[Any, Tensor], Any]
LINES, IMAGES, VOLUMES, VECTORS = (torch.randn(3, 4, *sizes).double() for sizes in ((9,), (7, 6), (5, 6, 4), ()))


def layer_then_norm(net: Any, x: Tensor) -> Tensor:
    return F.relu(net.norm(net.layer(x)))


def norm_then_layer(net: Any, x: Tensor) -> Tensor:
    return F.relu(net.layer(net.norm(x.sin())))


BEFORE: dict[str, tuple[nn.Module, nn.Module, Tensor]] = {
    "linear": (nn.Linear(4, 6), nn.BatchNorm1d(6), VECTORS),
    "conv1d": (nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6), LINES),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2, padding="valid", bias=False), nn.BatchNorm2d(6), IMAGES),
    "conv3d": (nn.Conv3d(4, 6, 3, padding="same"), nn.BatchNorm3d(6), VOLUMES),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8, affine=False), IMAGES),
    "reflecting": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(6), IMAGES),
    "transposed 2d": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(6), IMAGES),
    "transposed 3d": (nn.ConvTranspose3d(4, 6, 2, output_padding=1, stride=2), nn.BatchNorm3d(6), VOLUMES),
    "fused": (nn.Conv2d(4, 6, 1), BatchNormAct2d(6, act_layer=nn.PReLU, drop_layer=nn.Dropout2d), IMAGES),
    "synchronized": (nn.Conv2d(4, 6, 1), nn.SyncBatchNorm(6), IMAGES),
}
BEHIND: dict[str, tuple[nn.Module, nn.Module, Tensor]] = {
    "linear behind": (nn.Linear(4, 6, bias=False), nn.BatchNorm1d(4), VECTORS),
    "conv2d behind": (nn.Conv2d(4, 6, 3, stride=2, bias=False), nn.BatchNorm2d(4), IMAGES),
    "grouped behind": (nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(4), IMAGES),
}
# Zeros around the input, or fewer inputs at the border, do not see a shift.
ONLY_WITHOUT_SHIFT: dict[str, tuple[nn.Module, nn.Module, Tensor]] = {
    "padded": (nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(4), IMAGES),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(4), IMAGES),
}


@pytest.mark.parametrize("case", [*BEFORE, *BEHIND])
def test_into_the_layer_before_or_behind(case: str) -> None:
    layer, norm, x = (BEFORE | BEHIND)[case]
    new, report = folded(Net(layer_then_norm if case in BEFORE else norm_then_layer, layer=layer, norm=norm), x)
    assert fate(report) == f"folded into layer {'before' if case in BEFORE else 'after'} it"
    assert type(new.layer) is type(layer)
    assert isinstance(new.norm, nn.Identity) or case not in BEHIND


@pytest.mark.parametrize("case", ONLY_WITHOUT_SHIFT)
def test_not_past_a_border_with_a_shift(case: str) -> None:
    layer, norm, x = ONLY_WITHOUT_SHIFT[case]
    net = Net(norm_then_layer, layer=layer, norm=norm)
    assert fate(folded(net, x)[1]).startswith("affine: it reads sin; layer pads its input")
    assert fate(folded(randomize(net, shift=False), x)[1]) == "folded into layer after it"


def conv() -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, padding=1)


def norm_run_twice(net: Any, x: Tensor) -> Any:
    return net.norm(net.layer(net.norm(x)))


def overwritten(net: Any, x: Tensor) -> Any:
    h = x.sin()
    y = net.norm(h)
    h.add_(1)
    return net.layer(y) + h


def checkpointed(net: Any, x: Tensor) -> Any:
    return checkpoint(lambda z: net.norm(net.layer(z)), x, use_reentrant=False)


COMPUTED, SEVERAL = "is computed in the forward pass", "the weight of conv2d of layer is used at several places"
FATES: dict[str, tuple[Run, nn.Module, str]] = {
    "norm run twice": (norm_run_twice, conv(), "affine: the norm runs at several places"),
    "a penalty": (lambda m, x: (m.norm(m.layer(x)), m.layer.weight.square().sum()), conv(), SEVERAL),
    "functional": (lambda m, x: m.norm(F.conv2d(x, m.layer.weight)), nn.Conv2d(4, 4, 3, bias=False), "not run in"),
    "activation": (lambda m, x: m.layer(F.relu(m.norm(x.sin()))), conv(), "affine: it reads sin; relu reads it"),
    "overwritten": (overwritten, nn.Conv2d(4, 4, 1), "values are overwritten in place before it is read"),
    "standardized": (layer_then_norm, StdConv2d(4, 4, 3), COMPUTED),
    "weight norm": (layer_then_norm, weight_norm(conv()), COMPUTED),
    "not at all": (lambda m, x: m.layer(x), conv(), "affine: it does not run on these inputs"),
    "checkpointed": (checkpointed, conv(), "folded into layer before it"),
}  # fmt: skip


@pytest.mark.parametrize("case", FATES)
def test_else_it_is_an_affine_map_in_its_place(case: str) -> None:
    run, layer, said = FATES[case]
    net = Net(run, layer=layer, norm=nn.BatchNorm2d(4))
    new, report = folded(net, IMAGES)
    assert said in fate(report)
    assert report.counts == {"folded": int("folded" in said), "affine": int("folded" not in said), "kept": 0}
    assert isinstance(new.norm, FrozenAffine) == ("folded" not in said)


def tokens(net: Any, x: Tensor) -> Any:
    y = net.layer(x.transpose(1, 2))  # (B, L, C)
    first = net.norm(y.flatten(0, 1)).reshape_as(y)
    return net.behind(net.transposed(first.sin().permute(0, 2, 1)).transpose(1, 2))


def test_channels_are_followed_through_changes_of_layout_that_keep_them() -> None:
    parts = {"layer": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4), "transposed": nn.BatchNorm1d(4)}
    _, report = folded(Net(tokens, **parts, behind=nn.Linear(4, 5)), LINES)
    assert fate(report) == "folded into layer before it"
    assert fate(report, "transposed") == "folded into behind after it"
    regrouped = Net(
        lambda m, x: m.norm(m.layer(x).reshape(3, 4, 12)), layer=nn.Conv1d(4, 6, 2), norm=nn.BatchNorm1d(4)
    )
    assert fate(folded(regrouped, LINES)[1]).startswith("affine: it reads reshape")
    mixed = Net(lambda m, x: m.norm(m.layer(x).transpose(1, 2)), layer=nn.Conv1d(4, 9, 1), norm=nn.BatchNorm1d(9))
    assert "the channels of layer are not the norm's" in fate(folded(mixed, LINES)[1])


def test_one_layer_takes_the_norms_on_both_sides_and_other_norms_are_kept() -> None:
    parts = {"first": nn.BatchNorm2d(4), "layer": nn.Conv2d(4, 6, 3, groups=2, bias=False), "last": nn.BatchNorm2d(6)}

    def run(m: Any, x: Tensor) -> Tensor:
        x = m.group(m.last(m.layer(m.first(x.sin()))))
        return F.layer_norm(x, x.shape[1:])

    new, report = folded(Net(run, **parts, group=nn.GroupNorm(2, 6)), IMAGES)
    assert (fate(report, "first"), fate(report, "last")) == (
        "folded into layer after it",
        "folded into layer before it",
    )
    assert report.counts == {"folded": 2, "affine": 0, "kept": 2}
    assert fate(report, "group") == "kept: it normalizes each example separately"
    assert str(report).startswith("4 norms: 2 folded, 0 affine, 2 kept\nfirst: folded into layer after it\n")
    assert isinstance(new.group, nn.GroupNorm)


MAPS = torch.randn(4, 6, 5, 5)
NORMS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "2d": (lambda: nn.BatchNorm2d(6, eps=0.1), MAPS),
    "3d": (lambda: nn.BatchNorm3d(6, affine=False), MAPS[..., None]),
    "synchronized": (lambda: nn.SyncBatchNorm(6), MAPS),
    "ghost": (lambda: GhostBatchNorm2d(6, ghost_size=2), MAPS),
    "no mean": (lambda: PartialBatchNorm2d(6, mean=False), MAPS),
    "timm fused in slopes": (lambda: BatchNormAct2d(6, act_layer=nn.PReLU, drop_layer=nn.Dropout), MAPS),
    "timm synchronized": (lambda: SyncBatchNormAct(6), MAPS),
    "timm split": (lambda: SplitBatchNorm2d(6), MAPS),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("case", NORMS)
def test_a_frozen_norm_gives_what_it_gave_in_eval_mode(case: str) -> None:
    build, x = NORMS[case]
    model = randomize(nn.Sequential(nn.Identity(), build()))
    if case == "timm synchronized":
        # timm builds the parts of this one only when it converts a fused norm.
        model[1].drop, model[1].act = nn.Identity(), nn.ReLU()
    frozen = nl.freeze(model)
    assert isinstance(frozen.get_submodule("1"), FrozenAffine)
    expected = model.eval()(x.clone())
    torch.testing.assert_close(frozen.eval()(x.clone()), expected)
    if case != "timm fused in slopes":  # Its dropout drops in train mode, as it should.
        torch.testing.assert_close(frozen.train()(x.clone()), expected)
