"""Frozen, folded and fused networks compute what the original computed, and survive as modules."""

from __future__ import annotations

import io
import pickle
from copy import deepcopy

import pytest
import torch
from fold_helpers import randomize
from timm.layers import BatchNormAct2d, SplitBatchNorm2d
from timm.layers.norm_act import SyncBatchNormAct
from torch import Tensor, nn

import normless as nl
from normless import convert, fuse_for_inference
from normless.errors import UnsupportedEditError
from normless.folding.constants import ConstantConvolution
from normless.models import resnet_cifar, wide_resnet
from normless.nn import (
    AlternatingBatchNorm2d,
    FrozenAffine,
    GhostBatchNorm2d,
    PartialBatchNorm2d,
    ResidualSum,
    scalar_affine,
)
from normless.nn.affine import ScalarConv2d, ScalarLinear
from normless.nn.batch_norms import PartialBatchNorm3d


def filled(network: nn.Module) -> nn.Module:
    """With every parameter and statistic at random values, in float64."""
    torch.manual_seed(0)
    network = network.double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
        for name, buffer in network.named_buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 2.0) if "var" in name else buffer.normal_()
    return network


def images(size: int = 9) -> Tensor:
    return torch.randn(2, 3, size, size + 2, dtype=torch.float64)


@pytest.mark.parametrize("scheme", ["none", "skipinit(alpha=0.5)", "fixup", "zeroinit", "batch_norm"])
def test_resnets(scheme: str) -> None:
    network = filled(convert(resnet_cifar(14), scheme))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fused = fuse_for_inference(network, images())
    for size in (9, 12, 9):
        x = images(size)
        torch.testing.assert_close(fused(x), network(x), rtol=1e-9, atol=1e-9)
    assert not any(parameter.numel() == 1 for parameter in fused.parameters())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(parameter.requires_grad for parameter in fused.parameters())


def test_what_stays_is_refused_by_name() -> None:
    network = filled(wide_resnet(10, 1))
    with pytest.raises(UnsupportedEditError, match=r"blocks\.0\.norm1 is a FrozenAffine.*allow_partial=True"):
        fuse_for_inference(network, images())
    x = images()
    torch.testing.assert_close(
        fuse_for_inference(network, x, allow_partial=True)(x), network(x), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    ("options", "is_constant"),
    [
        ({"padding": 1}, True),
        ({"padding": "same"}, True),
        ({"padding": 1, "padding_mode": "circular"}, False),
        ({"padding": 0, "stride": 2}, False),
        ({"padding": 2, "groups": 2, "dilation": 2}, True),
    ],
)
def test_a_bias_before_a_convolution(options, is_constant: bool) -> None:
    layer = scalar_affine(nn.Conv2d(2, 4, 3, **options))
    for part in ("input_bias", "multiplier", "output_bias"):
        layer.add_part(part, torch.zeros(1))
    network = filled(nn.Sequential(layer))
    fused = fuse_for_inference(network)
    assert isinstance(fused[0], ConstantConvolution) == is_constant
    assert not isinstance(fused[0], ScalarConv2d)
    x = torch.randn(3, 2, 7, 8, dtype=torch.float64)
    torch.testing.assert_close(fused(x), network(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(fused(x[0]), network(x[0]), rtol=1e-10, atol=1e-10)


def test_linear_layers_and_sums() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.sum = scalar_affine(nn.Linear(5, 5, bias=False)), ResidualSum()
            self.layer.add_part("input_bias", torch.zeros(1))
            self.layer.before = nn.Dropout(0.5)
            self.sum.multiplier = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.sum(x, self.layer(x).tanh())

    network, x = filled(Block()), torch.randn(4, 5, dtype=torch.float64)
    fused = fuse_for_inference(network)
    assert not any(isinstance(module, ScalarLinear) for module in fused.modules())
    assert fused.sum.multiplier is None
    torch.testing.assert_close(fused(x), network(x), rtol=1e-12, atol=1e-12)


def test_compiled_and_exported_networks_compute_the_constant_anew() -> None:
    network = filled(convert(resnet_cifar(8), "fixup"))
    fused, x = fuse_for_inference(network), images()
    exported = torch.export.export(fused, (x,), strict=False).module()
    torch.testing.assert_close(exported(x), network(x), rtol=1e-9, atol=1e-9)


IMAGES = torch.randn(4, 6, 5, 5)
NORMS = {
    "1d": (lambda: nn.BatchNorm1d(6), torch.randn(4, 6)),
    "2d": (lambda: nn.BatchNorm2d(6, eps=0.1), IMAGES),
    "3d": (lambda: nn.BatchNorm3d(6, affine=False), IMAGES[..., None]),
    "synchronized": (lambda: nn.SyncBatchNorm(6), IMAGES),
    "ghost": (lambda: GhostBatchNorm2d(6, ghost_size=2), IMAGES),
    "alternating": (lambda: AlternatingBatchNorm2d(6), IMAGES),
    "no mean": (lambda: PartialBatchNorm2d(6, mean=False), IMAGES),
    "no variance": (lambda: PartialBatchNorm2d(6, variance=False, beta=False), IMAGES),
    "volumes without a mean": (lambda: PartialBatchNorm3d(6, mean=False), IMAGES[..., None]),
    "only a mean": (lambda: PartialBatchNorm2d(6, variance=False, gamma=False, beta=False), IMAGES),
    "timm fused": (lambda: BatchNormAct2d(6, act_layer=nn.SiLU), IMAGES),
    "timm fused in slopes": (lambda: BatchNormAct2d(6, act_layer=nn.PReLU, drop_layer=nn.Dropout), IMAGES),
    "timm synchronized": (lambda: SyncBatchNormAct(6), IMAGES),
    "timm split": (lambda: SplitBatchNorm2d(6), IMAGES),
}


@pytest.mark.parametrize("case", NORMS)
def test_each_gives_what_it_gave_in_eval_mode(case: str) -> None:
    build, x = NORMS[case]
    model = randomize(nn.Sequential(nn.Identity(), build()))
    if case == "timm synchronized":
        # timm builds the parts of this one only when it converts a fused norm.
        model[1].drop, model[1].act = nn.Identity(), nn.ReLU()
    frozen = nl.freeze(model)
    assert isinstance(frozen[1], FrozenAffine)
    expected = model.eval()(x.clone())
    torch.testing.assert_close(frozen.eval()(x.clone()), expected)
    if case != "timm fused in slopes":  # Its dropout drops in train mode, as it should.
        torch.testing.assert_close(frozen.train()(x.clone()), expected)


def test_the_original_is_untouched_and_the_mode_stays() -> None:
    model = randomize(wide_resnet(depth=16, width=1))
    next(model.children()).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    frozen = nl.freeze(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in frozen.modules()] == [module.training for module in model.modules()]
    kept = {name for name in before if "running" not in name and "tracked" not in name}
    norms = {name for name in kept if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.BatchNorm2d)}
    assert kept - norms <= set(frozen.state_dict())
    assert type(frozen) is type(model)


class Skipping(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


def test_refusals_name_the_norm_and_what_to_do() -> None:
    with pytest.raises(nl.UnsupportedEditError, match=r"^body\.0 is a BatchNorm2d without running statistics"):
        nl.freeze(nn.ModuleDict({"body": nn.Sequential(nn.BatchNorm2d(6, track_running_stats=False))}))
    with pytest.raises(nl.UnsupportedEditError, match=r"^0 is a Skipping, which does more .*: a Skipping .* add"):
        nl.freeze(nn.Sequential(Skipping(6)))
    hooked = nn.Sequential(nn.BatchNorm2d(6))
    hooked[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(nl.UnsupportedEditError, match=r"^0 carries hooks"):
        nl.freeze(hooked)


BATCH = torch.randn(2, 3, 32, 32)


@pytest.fixture
def model() -> nn.Module:
    return randomize(wide_resnet(depth=16, width=1)).eval()


@pytest.fixture
def net(model: nn.Module) -> nn.Module:
    new, report = nl.fold(model, BATCH)
    # Both kinds of outcome: half of the norms of a pre-activation network read sums.
    assert min(report.counts["folded"], report.counts["affine"]) > 0
    return new


def test_copied_pickled_and_saved(model: nn.Module, net: nn.Module) -> None:
    expected = net(BATCH)
    assert torch.equal(deepcopy(net)(BATCH), expected)
    assert torch.equal(pickle.loads(pickle.dumps(net))(BATCH), expected)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other, _ = nl.fold(randomize(deepcopy(model)), BATCH)
    assert not torch.allclose(other(BATCH), expected)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(BATCH), expected)


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compiled_and_exported(net: nn.Module) -> None:
    expected = net(BATCH)
    torch.testing.assert_close(torch.compile(net, backend="aot_eager")(BATCH), expected)
    exported = torch.export.export(net, (BATCH,)).module()
    torch.testing.assert_close(exported(BATCH), expected)


def test_it_trains_at_batch_size_one(net: nn.Module) -> None:
    affine = [module for module in net.modules() if isinstance(module, FrozenAffine)]
    before = [module.scale.clone() for module in affine]
    optimizer = torch.optim.SGD(net.train().parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(net(BATCH[:1]), torch.tensor([3]))
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in net.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(module.scale, value) for module, value in zip(affine, before, strict=True))


def test_half_precision_weights_are_folded_in_full_precision(model: nn.Module) -> None:
    half = deepcopy(model).bfloat16()
    new, report = nl.fold(half, BATCH.bfloat16())
    reference, _ = nl.fold(deepcopy(half).double(), BATCH.double())
    folded = {norm.layer for norm in report.norms if norm.layer is not None}
    for name in folded:
        assert torch.equal(new.get_submodule(name).weight, reference.get_submodule(name).weight.bfloat16())
