"""Triton kernels on a card: each against float64, whole networks against operators."""

from __future__ import annotations

from copy import deepcopy
from itertools import product

import kernel_checks
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import resnet_cifar, wide_resnet
from normless.nn.kernels import _on_cuda as on_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]

SHAPES = (*kernel_checks.SHAPES, (128, 16, 32, 32), (512, 64, 33, 17))


@pytest.mark.parametrize(("shape", "dtype", "last"), list(product(SHAPES, kernel_checks.DTYPES, (False, True))))
def test_shifts(shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> None:
    torch.manual_seed(0)
    kernel_checks.check_shifted(shape, dtype, "cuda", last)
    for biases in kernel_checks.BIASES:
        kernel_checks.check_shifted_relu(shape, dtype, biases, "cuda", last)


@pytest.mark.parametrize(
    ("shape", "dtype", "each"), list(product(kernel_checks.WEIGHTS, kernel_checks.DTYPES, (False, True)))
)
def test_scaled_weights(shape: tuple[int, ...], dtype: torch.dtype, each: bool) -> None:
    torch.manual_seed(0)
    kernel_checks.check_scaled(shape, dtype, each, "cuda", True)


def test_values_that_are_not_numbers_and_second_derivatives() -> None:
    torch.manual_seed(0)
    kernel_checks.check_values_that_are_not_numbers("cuda")
    kernel_checks.check_second_derivatives("cuda")


def disturbed(network: nn.Module) -> nn.Module:
    """On the card with channels last, scalars off their start and no weight zero."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.numel() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif not parameter.any():
                parameter.normal_(std=0.05)
    return network.to("cuda", memory_format=torch.channels_last)


def gradients(network: nn.Module, images: Tensor, labels: Tensor, low: bool) -> list[Tensor]:
    twin = deepcopy(network)
    with torch.autocast("cuda", torch.bfloat16, enabled=low):
        F.cross_entropy(twin(images), labels).backward()
    return [parameter.grad for parameter in twin.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("scheme", ["skipinit(alpha=0.5)", "fixup"])
@pytest.mark.parametrize("low", [False, True])
def test_whole_networks(scheme: str, low: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = disturbed(nl.convert(wide_resnet(10, 2), scheme))
    images = torch.randn(64, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(10, (64,), device="cuda")
    exact = gradients(deepcopy(network).double(), images.double(), labels, False)
    monkeypatch.setattr(on_cuda, "WHEN", "always")
    by_kernels = gradients(network, images, labels, low)
    monkeypatch.setattr(on_cuda, "WHEN", "never")
    by_operators = gradients(network, images, labels, low)
    for found, plain, expected in zip(by_kernels, by_operators, exact, strict=True):
        size = expected.norm() + 1e-6
        # Not further from the exact gradient than operators are, up to chance.
        bound = 2 * ((plain - expected).norm() / size) + (0.05 if low else 1e-3)
        assert (found - expected).norm() / size <= bound


def test_a_captured_step_is_the_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cuda, "WHEN", "always")
    torch.manual_seed(0)
    network = disturbed(nl.convert(resnet_cifar(8), "fixup"))
    images = torch.randn(32, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)

    def step() -> None:
        network.zero_grad(set_to_none=True)
        network(images).square().mean().backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    step()
    expected = [parameter.grad.clone() for parameter in network.parameters()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    for parameter, wanted in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-3, atol=1e-5)


def test_kernels_are_for_large_tensors_and_captured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cuda, "WHEN", "auto")
    small, large = (torch.zeros(size, device="cuda", dtype=torch.bfloat16) for size in (2**16, on_cuda.LARGE))
    assert not on_cuda.kernels_fit(small)
    assert on_cuda.kernels_fit(large)
    with on_cuda.every_kernel():
        assert on_cuda.kernels_fit(small)
        assert not on_cuda.kernels_fit(small.double())
    assert not on_cuda.kernels_fit(small)
