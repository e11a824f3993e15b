"""Batch norms and their variants: those of parts of a batch, of domains and of libraries, there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from edit_helpers import assert_changes, close, edited, images, randomized
from errors.edits_of_norms import pooled
from sub_batch_norms import NORMS, WIDTH, Network, Norm
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

import normless as nl
from normless import nn as own
from normless.edits import ReplaceNorms
from normless.models import dense, resnet_cifar, wide_resnet
from normless.nn._batch_norms import AlternatingBatchNorm1d, GhostBatchNorm1d, PartialBatchNorm1d
from normless.nn._domains import DomainBatchNorm, SplitBatchNorm


def trained(model: nn.Module) -> Any:
    """Norms with γ, β and statistics that differ, in evaluation mode."""
    for module in model.modules():
        if isinstance(getattr(module, "running_mean", None), Tensor):
            module.running_mean.normal_()  # type: ignore[operator]
            module.running_var.uniform_(0.5, 2)  # type: ignore[operator]
        for name, value in module.named_parameters(recurse=False):
            if value.dim() == 1 and "head" not in name and not isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.uniform_(value, 0.5, 2)
    return model.eval()


def network(name: str) -> tuple[Any, Tensor]:
    """A trained network with norms of this name, and its inputs."""
    torch.manual_seed(0)
    return trained(Network(NORMS[name])), images()


def switched(net: nn.Module) -> nn.Module:
    """The other domain."""
    for module in net.modules():
        for name, value in {"batch_type": "adv", "domain": 2}.items():
            if getattr(module, name, None) is not None:
                setattr(module, name, value)
    return net


def batch_norms(net: nn.Module) -> list[str]:
    return [path for path, module in net.named_modules() if isinstance(module, _BatchNorm)]


ALONE = ["skipinit(alpha=0.3)", "fixup", "group_norm(groups=2)", "dyt"]


@pytest.mark.parametrize(("name", "scheme"), [*zip(NORMS, ALONE, strict=True)])
def test_no_norm_is_left_for_any_part_or_domain(name: str, scheme: str) -> None:
    model, images = network(name)
    x = torch.relu(model.stem(images))
    for block in model.blocks:
        x = torch.relu(x + block.conv2(torch.relu(block.conv1(x))))
    for mode in (False, True):
        net = nl.convert(model.train(mode), "none(keep_scale=False)", images)
        assert batch_norms(net) == []
        for training in (False, True):
            close(switched(net).train(training)(images), model.head(x.mean((2, 3))))
    # Schemes without batches compute each example on its own.
    net = switched(nl.convert(model.eval(), scheme, images)).train()
    assert batch_norms(net) == []
    close(net(images), torch.cat([net(one) for one in images.split(1)]))


SAME = {"SlowFast": "frozen_batch_norm", "halves": "split_batch_norm", "mixed": "ghost_batch_norm"}


@pytest.mark.parametrize("name", SAME)
def test_norms_of_parts_become_those_of_evaluation(name: str) -> None:
    model, images = network(name)
    for scheme in ("plain_batch_norm", SAME[name]):
        close(nl.convert(model, scheme, images).eval()(images), model(images), rtol=1e-4, atol=1e-5)
    net: Any = nl.convert(model, "plain_batch_norm", images)
    assert {type(one) for one in net.modules() if "Norm" in type(one).__name__} == {nn.BatchNorm2d}
    by_hand = Network(nn.BatchNorm2d)
    by_hand.load_state_dict({key: value for key, value in net.state_dict().items() if "normless" not in key})
    close(net.train()(images), by_hand.train()(images))
    close(net.norm.running_mean, by_hand.norm.running_mean)


def test_domains_and_parts_have_statistics_of_their_own_and_become_plain_again() -> None:
    for model in (resnet_cifar(8).eval(), pooled(WIDTH).eval()):
        x = torch.randn(6, 3, 16, 16)
        net = nl.convert(model, "domain_batch_norm(domains=3)", x)
        close(net(x), model(x))
        norm = next(one for one in net.modules() if isinstance(one, DomainBatchNorm))
        net.train()
        with own.using_domain(net, 2):
            net(5 * x + 1)
            assert norm.domain == 2
        means = [one.running_mean for one in norm.norms]
        assert torch.equal(means[0], means[1])  # type: ignore[arg-type]
        assert not torch.equal(means[0], means[2])  # type: ignore[arg-type]
        close(net.eval()(x), model(x))
        with pytest.raises(ValueError, match="0 to 2, got 3"), own.using_domain(net, 3):
            pass
        net = nl.convert(model, "split_batch_norm(parts=3)", x)
        close(net(x), model(x))
        path, split = next((path, one) for path, one in net.named_modules() if isinstance(one, SplitBatchNorm))
        y = torch.randn(6, split.norms[0].num_features, 4, 4)  # type: ignore[call-overload]
        close(split.train()(y), torch.cat([F.batch_norm(part, None, None, training=True) for part in y.split(2)]))
        assert not torch.equal(split.norms[0].running_mean, split.norms[1].running_mean)  # type: ignore[arg-type]
        del net.normless_scheme
        back = nl.convert(net.eval(), "plain_batch_norm", x)
        close(back(x), net(x))
        assert type(back.get_submodule(path)) is nn.BatchNorm2d


FOREIGN: dict[str, Norm] = {
    "torchvision's frozen": torchvision.ops.FrozenBatchNorm2d,
    "timm's frozen": timm.layers.FrozenBatchNormAct2d,  # type: ignore[attr-defined]
    "synchronized": nn.SyncBatchNorm,
    "ghost": lambda width: own.GhostBatchNorm2d(width, 2),
    "ours": own.FrozenBatchNorm,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_norms_of_others_become_torchs_own_and_train(name: str) -> None:
    layers = (nn.Conv2d(3, 8, 3), FOREIGN[name](8), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    model, x = nn.Sequential(*layers).eval(), images()
    for value in (model[1].running_mean, model[1].running_var, model[1].weight, model[1].bias):
        nn.init.uniform_(value, 0.5, 2)  # type: ignore[arg-type]
    net = nl.convert(model, "plain_batch_norm", x)
    close(net.eval()(x), model(x), rtol=1e-4, atol=1e-4)
    (norm,) = (one for one in net.modules() if type(one) is nn.BatchNorm2d)
    before = norm.running_mean.clone()  # type: ignore[union-attr]
    net.train()(x).sum().backward()
    assert norm.weight.grad is not None
    assert not torch.equal(norm.running_mean, before)  # type: ignore[arg-type]


def test_frozen_and_synchronized_norms_compute_what_evaluation_did() -> None:
    x, model = images(), trained(resnet_cifar(8))
    net = nl.convert(model, "frozen_batch_norm", x)
    close(net.train()(x), model(x), rtol=1e-4, atol=1e-4)
    frozen = {path: one for path, one in net.named_modules() if isinstance(one, own.FrozenBatchNorm)}
    assert set(frozen) == {path for path, one in model.named_modules() if isinstance(one, nn.BatchNorm2d)}
    assert not [name for name, _ in net.named_parameters() if name.rpartition(".")[0] in frozen]
    for one in frozen.values():
        torchvision.ops.FrozenBatchNorm2d(one.num_features).load_state_dict(one.state_dict())
    del net.normless_scheme
    close(nl.convert(net, "plain_batch_norm", x).eval()(x), model(x), rtol=1e-4, atol=1e-4)
    synchronized = nl.convert(model, "sync_batch_norm")
    assert {type(one) for one in synchronized.modules() if "BatchNorm" in type(one).__name__} == {nn.SyncBatchNorm}
    close(synchronized(x), model(x))


FAMILIES: dict[str, tuple[tuple[tuple[str, Any], ...], type, type]] = {
    "ghost": ((("ghost_size", 3),), own.GhostBatchNorm2d, GhostBatchNorm1d),
    "partial": ((("mean", True),), own.PartialBatchNorm2d, PartialBatchNorm1d),
    "alternating": ((), own.AlternatingBatchNorm2d, AlternatingBatchNorm1d),
    "group": ((("groups", 2),), nn.GroupNorm, nn.GroupNorm),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("vectors", [0, 1], ids=["2d", "1d"])
def test_replaced_norms_keep_gamma_beta_and_statistics(family: Any, vectors: int) -> None:
    options, *kinds = FAMILIES[family]
    model = randomized([wide_resnet(10, 1), dense(3, 8, in_features=4)][vectors]).double().eval()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eps, module.momentum = 1e-3, 0.3
    net = edited(model, ReplaceNorms(family, options))
    kind = kinds[vectors].__name__
    statistics = "-*norm*.running_mean -*norm*.running_var -*norm*.num_batches_tracked" if family == "group" else ""
    own_statistics = "+*norm*.latest_* +*norm*.reuse_next" if family == "alternating" else ""
    assert_changes(model, net, f"*norm={kind} *norm?={kind} {statistics} {own_statistics}")
    norms: list[Any] = [one for one in net.modules() if type(one) is kinds[vectors]]
    for norm in norms:
        assert norm.weight.dtype is torch.float64
        assert not norm.training
        assert family == "group" or (norm.eps, norm.momentum) == (1e-3, 0.3)
    if family != "group":
        x = torch.randn(6, 4).double() if vectors else images().double()
        close(net(x), model(x), rtol=1e-10, atol=1e-10)


GIVEN_BACK = ["sync_batch_norm", "ghost_batch_norm(size=4)", "alternating_batch_norm", "frozen_batch_norm"]


@pytest.mark.parametrize("scheme", GIVEN_BACK)
def test_a_trained_network_of_variants_gets_its_batch_norms_back(scheme: str, tmp_path: Path) -> None:
    x = torch.randn(8, 3, 8, 8)
    net: Any = nl.convert(resnet_cifar(8), scheme, x)
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if value.is_floating_point() and "norm" in name:
                value.uniform_(0.5, 2.0)
    back = nl.convert(net, "plain_batch_norm", x)
    assert {type(one) for one in back.modules() if "Norm" in type(one).__name__} == {nn.BatchNorm2d}
    torch.testing.assert_close(back.eval()(x), net.eval()(x))
    assert all(parameter.requires_grad for parameter in back.parameters())
    assert back.normless_scheme == "plain_batch_norm"
    nl.save(back, tmp_path, "normless:resnet_cifar(depth=8)", example_inputs=x)
    assert torch.equal(nl.load(tmp_path).eval()(x), back(x))
    for other in ("none", "ghost_batch_norm"):
        with pytest.raises(nl.errors.AlreadyConvertedError, match="only plain_batch_norm gives"):
            nl.convert(net, other, x)
    with pytest.raises(nl.errors.AlreadyConvertedError, match="'group_norm'"):
        nl.convert(nl.convert(resnet_cifar(8), "group_norm", x), "plain_batch_norm", x)
