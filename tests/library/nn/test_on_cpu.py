"""Functions that keep one tensor, against the formulas written with operators."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from normless import convert
from normless.models import resnet_cifar
from normless.nn.kernels import _on_cpu as kept_once
from normless.nn.kernels._on_cpu import ShiftedReLU, added_to_convolution


@pytest.fixture(autouse=True)
def _at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_once, "SMALLEST", 0)


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def assert_same_gradients(one: Tensor, other: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    direction = torch.randn_like(one)
    for first, second in zip(
        torch.autograd.grad(one, inputs, direction), torch.autograd.grad(other, inputs, direction), strict=True
    ):
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("before", [True, False])
def test_relu_between_biases(before: bool) -> None:
    x, first, after = leaves((3, 4, 5, 6), (1,), (1,))
    shift = first if before else None
    plain = torch.relu(x if shift is None else x + shift) + after
    fused = ShiftedReLU.apply(x, shift, after)
    assert_same_gradients(fused, plain, [x, after, *([first] if before else [])])
    small = [leaf.detach().requires_grad_() for leaf in (x[0, 0], first, after)]
    assert torch.autograd.gradcheck(ShiftedReLU.apply, small)
    assert torch.autograd.gradgradcheck(ShiftedReLU.apply, small)


SETTINGS = [
    ((3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((3, 3), (2, 2), (1, 1), (1, 1), 2),
    ((3, 2), (2, 1), (2, 0), (1, 2), 1),
    ((1, 1), (2, 2), (0, 0), (1, 1), 1),
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("has_bias", [True, False])
def test_added_to_convolution(settings, has_bias: bool) -> None:
    kernel, *rest, groups = settings
    x, shift, weight, bias = leaves((3, 4, 7, 6), (1,), (6, 4 // groups, *kernel), (6,))
    given = bias if has_bias else None
    plain = nn.functional.conv2d(x + shift, weight, given, *rest, groups)
    fused = added_to_convolution(x, shift, weight, given, *rest, groups=groups)
    assert_same_gradients(fused, plain, [x, shift, weight, *([bias] if has_bias else [])])


def filled(scheme: str) -> nn.Module:
    torch.manual_seed(0)
    network = convert(resnet_cifar(14), scheme).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    return network


def test_a_fixup_network_has_the_gradients_of_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = filled("fixup"), torch.randn(4, 3, 8, 8, dtype=torch.float64)
    outputs, gradients = [], []
    for smallest in (0, 10**9):
        monkeypatch.setattr(kept_once, "SMALLEST", smallest)
        outputs.append(network(x))
        gradients.append(torch.autograd.grad(outputs[-1].square().sum(), list(network.parameters())))
    torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-10)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_each_activation_is_kept_once() -> None:
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.dim() == 4 and tensor.shape[0] == 4:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    network, x = filled("fixup"), torch.randn(4, 3, 8, 8, dtype=torch.float64)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        network(x)
    # The input, the stem's ReLU, two of each of six blocks.
    assert len([one for one in kept.values() if one.shape[1] != 3]) == 13
