"""A folded network is an ordinary module: copied, saved, compiled, exported, in other dtypes and layouts."""

from __future__ import annotations

import io
import pickle
from copy import deepcopy

import pytest
import torch
from fold_helpers import randomize
from torch import nn

import normless as nl
from normless.models import wide_resnet
from normless.nn import FrozenAffine

IMAGES = torch.randn(2, 3, 32, 32)


@pytest.fixture
def model() -> nn.Module:
    return randomize(wide_resnet(depth=16, width=1)).eval()


@pytest.fixture
def net(model: nn.Module) -> nn.Module:
    new, report = nl.fold(model, IMAGES)
    # Both kinds of outcome: half of the norms of a pre-activation network read sums.
    assert min(report.counts["folded"], report.counts["affine"]) > 0
    return new


def test_copied_pickled_and_saved(model: nn.Module, net: nn.Module) -> None:
    expected = net(IMAGES)
    assert torch.equal(deepcopy(net)(IMAGES), expected)
    assert torch.equal(pickle.loads(pickle.dumps(net))(IMAGES), expected)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other, _ = nl.fold(randomize(deepcopy(model)), IMAGES)
    assert not torch.allclose(other(IMAGES), expected)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(IMAGES), expected)


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compiled_and_exported(net: nn.Module) -> None:
    expected = net(IMAGES)
    torch.testing.assert_close(torch.compile(net, backend="aot_eager")(IMAGES), expected)
    exported = torch.export.export(net, (IMAGES,)).module()
    torch.testing.assert_close(exported(IMAGES), expected)


def test_it_trains_at_batch_size_one(net: nn.Module) -> None:
    affine = [module for module in net.modules() if isinstance(module, FrozenAffine)]
    before = [module.scale.clone() for module in affine]
    optimizer = torch.optim.SGD(net.train().parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(net(IMAGES[:1]), torch.tensor([3]))
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in net.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(module.scale, value) for module, value in zip(affine, before, strict=True))


def test_half_precision_weights_are_folded_in_full_precision(model: nn.Module) -> None:
    half = deepcopy(model).bfloat16()
    new, report = nl.fold(half, IMAGES.bfloat16())
    reference, _ = nl.fold(deepcopy(half).double(), IMAGES.double())
    folded = {layer for norm in report.norms for layer in norm.layers}
    for name in folded:
        assert torch.equal(new.get_submodule(name).weight, reference.get_submodule(name).weight.bfloat16())
