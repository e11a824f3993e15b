"""Batch norms of parts of a batch and of domains: schemes convert them as one norm each, and lead there and back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from sub_batch_norms import NORMS, WIDTH, Block, Network, given, trained
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.errors import NormlessError
from normless.models import resnet_cifar
from normless.nn import SplitBatchNorm

PARTS = ["SlowFast", "TabNet", "timm's split", "halves"]


def images() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def batch_norms(net: nn.Module) -> list[str]:
    return [path for path, module in net.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def switched(net: nn.Module) -> nn.Module:
    """The other domain."""
    for module in net.modules():
        for name, value in {"batch_type": "adv", "domain": 2, "is_target": True}.items():
            if hasattr(module, name):
                setattr(module, name, value)
    return net


def without(net: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    """What the network computes whose norms are the identity, written out."""
    x = torch.relu(net.conv(inputs[0]))
    for block in net.blocks:
        x = torch.relu(x + block.conv2(torch.relu(block.conv1(x))))
    return net.head(x.mean((2, 3)))


@pytest.mark.parametrize("name", NORMS)
def test_removing_norms_leaves_none_for_any_part_or_domain(name: str) -> None:
    model, inputs = trained(name), given(name, images())
    net = nl.convert(model, "none(keep_scale=False)", *inputs)
    assert batch_norms(net) == []
    for training in (False, True):
        torch.testing.assert_close(switched(net).train(training)(*inputs), without(model, inputs))


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("SlowFast", "skipinit(alpha=0.3)"), ("TabNet", "fixup"), ("timm's split", "group_norm(groups=2)"),
        ("halves", "dyt"), ("mixed", "fixup"), ("chosen", "group_norm(groups=2)"), ("passed", "dyt"),
    ],
)  # fmt: skip
def test_schemes_without_batches_compute_each_example_on_its_own(name: str, scheme: str) -> None:
    model, inputs = trained(name), given(name, images())
    net = switched(nl.convert(model, scheme, *inputs)).train()
    assert batch_norms(net) == []
    whole = net(*inputs)
    alone = torch.cat([net(one, *inputs[1:]) for one in inputs[0].split(1)])
    torch.testing.assert_close(whole, alone)


@pytest.mark.parametrize(
    ("name", "scheme"), [*zip(PARTS, ["none", "dyt(alpha=0.5)", "plain_batch_norm", "none"], strict=True)]
)
def test_the_mode_of_the_network_does_not_matter(name: str, scheme: str) -> None:
    inputs = given(name, images())
    nets = [nl.convert(trained(name).train(training), scheme, *inputs).eval() for training in (False, True)]
    torch.testing.assert_close(nets[0](*inputs), nets[1](*inputs))


@pytest.mark.parametrize("name", [*PARTS, "mixed"])
def test_norms_of_parts_become_the_plain_one_of_evaluation(name: str) -> None:
    model, inputs = trained(name), given(name, images())
    net = nl.convert(model, "plain_batch_norm", *inputs)
    kinds = {type(one) for one in net.modules() if "Norm" in type(one).__name__}
    assert kinds == {nn.BatchNorm2d}
    torch.testing.assert_close(net(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    by_hand = Network(nn.BatchNorm2d)
    by_hand.load_state_dict({key: value for key, value in net.state_dict().items() if "normless" not in key})
    torch.testing.assert_close(net.train()(*inputs), by_hand.train()(*inputs))
    torch.testing.assert_close(net.norm.running_mean, by_hand.norm.running_mean)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("SlowFast", "frozen_batch_norm"), ("TabNet", "domain_batch_norm"), ("halves", "split_batch_norm"),
        ("mixed", "ghost_batch_norm"), ("timm's split", "frozen_batch_norm"),
    ],
)  # fmt: skip
def test_other_kinds_compute_the_same_in_evaluation(name: str, scheme: str) -> None:
    model, inputs = trained(name), given(name, images())
    net = nl.convert(model, scheme, *inputs).eval()
    torch.testing.assert_close(net(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [lambda: resnet_cifar(8), lambda: one_norm()])
def test_parts_of_a_batch_have_norms_of_their_own_and_become_plain_again(build: Any) -> None:
    model, x = build().eval(), torch.randn(6, 3, 16, 16)
    net = nl.convert(model, "split_batch_norm(parts=3)", x)
    torch.testing.assert_close(net(x), model(x))
    path, norm = next((path, one) for path, one in net.named_modules() if isinstance(one, SplitBatchNorm))
    y = torch.randn(6, norm.norms[0].num_features, 4, 4)
    parts = [F.batch_norm(part, None, None, training=True) for part in y.split(2)]
    torch.testing.assert_close(norm.train()(y), torch.cat(parts))
    assert not torch.equal(norm.norms[0].running_mean, norm.norms[1].running_mean)
    del net.normless_scheme
    back = nl.convert(net.eval(), "plain_batch_norm", x)
    torch.testing.assert_close(back(x), net(x))
    assert type(back.get_submodule(path)) is nn.BatchNorm2d
    with pytest.raises(nl.UnsupportedEditError, match="parts=1"):
        nl.convert(model, "split_batch_norm(parts=1)", x)


def one_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, WIDTH, 3), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.Conv2d(WIDTH, 2, 3))


class Beside(Block):
    """The norm for adversarial examples is an attribute of the block itself."""

    def __init__(self, norm: Any) -> None:
        super().__init__(norm)
        self.norm1_adv, self.norm2_adv, self.is_target = norm(WIDTH), norm(WIDTH), False

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        first, second = (self.norm1_adv, self.norm2_adv) if self.is_target else (self.norm1, self.norm2)
        return torch.relu(x + second(self.conv2(torch.relu(first(self.conv1(x))))))


@pytest.mark.parametrize(
    ("norm", "scheme"),
    [(nn.BatchNorm2d, "none"), (lambda width: nn.GroupNorm(2, width), "dyt"), (nn.SyncBatchNorm, "skipinit")],
)
def test_norms_beside_the_one_that_ran_are_converted_alike(norm: Any, scheme: str) -> None:
    model = Network(nn.BatchNorm2d)
    model.blocks = nn.ModuleList([Beside(norm), Beside(norm)])
    if norm is nn.SyncBatchNorm:
        model.eval()
    x = images()
    net = nl.convert(model, scheme, x)
    left = [path for path, one in net.named_modules() if "Norm" in type(one).__name__]
    assert left == []
    assert {change.path for change in nl.plan(model, scheme, x)} >= {"blocks.0.norm1_adv", "blocks.1.norm2_adv"}
    torch.testing.assert_close(switched(copy.deepcopy(net))(x).shape, net(x).shape)


@pytest.mark.parametrize("name", NORMS)
def test_folded_and_frozen_ones_compute_what_evaluation_did_or_are_refused(name: str) -> None:
    model, inputs = trained(name), given(name, images())
    expected = model(*inputs)
    for change in (lambda: nl.freeze(model), lambda: nl.fold(model, *inputs)[0]):
        try:
            net = change()
        except NormlessError:
            assert name not in PARTS
            continue
        torch.testing.assert_close(net.eval()(*inputs), expected, rtol=1e-4, atol=1e-4)
        if name in PARTS:
            torch.testing.assert_close(net.train()(*inputs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PARTS)
def test_gamma_has_the_role_of_the_whole_norm(name: str) -> None:
    inputs = given(name, images())
    for training in (True, False):
        mapped = nl.residual_map(trained(name).train(training), *inputs)
        assert mapped.unresolved == ()
        assert mapped.norms == {
            "norm": "stem",
            **{
                f"blocks.{block}.norm{number}": role
                for block in (0, 1)
                for number, role in ((1, "other"), (2, "last"))
            },
        }
