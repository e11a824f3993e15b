"""The papers' networks written out by their formulas, on the weights of our converted networks, as a reference.

Here scalars multiply and shift activations; a converted network folds them into weights and biases.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.models import PaddedShortcut


class Parts:
    """The parameters of a layer by name; missing ones are None."""

    def __init__(self, network: nn.Module, layer: str) -> None:
        self._parameters = dict(network.get_submodule(layer).named_parameters(recurse=False))

    def __getattr__(self, name: str) -> Tensor | None:
        return self._parameters.get(name)

    @property
    def matrix(self) -> Tensor:
        """The layer's weight."""
        return self._parameters["weight"]


def scaled(value: Tensor, factor: Tensor | None) -> Tensor:
    """Return factor · value, or the value without a factor."""
    return value if factor is None else factor * value


def shifted(value: Tensor, bias: Tensor | None) -> Tensor:
    """Return value + bias, or the value without a bias."""
    return value if bias is None else value + bias


def convolved(parts: Parts, x: Tensor, stride: int = 1) -> Tensor:
    """Apply a convolution with its own bias; odd kernels are padded by half their size."""
    weight = parts.matrix
    return F.conv2d(x, weight, parts.bias, stride, padding=weight.shape[-1] // 2)


def classified(network: nn.Module, x: Tensor) -> Tensor:
    """Apply the mean over positions, Fixup's scalar bias if there is one, and the linear classifier."""
    head = Parts(network, "classifier")
    return F.linear(shifted(x.mean((2, 3)), head.input_bias), head.matrix, head.bias)


def wide_resnet_with_multipliers(network: nn.Module, x: Tensor) -> Tensor:
    """Compute x_{l+1} = skip + α (w₂ ∗ relu(w₁ ∗ relu(x_l) + b₁) + b₂), and the logits after relu and mean.

    The network is a `wide_resnet` by SkipInit or ZeroInit, without dropout; images are (B, C, H, W). A 1×1
    convolution on the skip path reads relu(x_l).
    """
    x = convolved(Parts(network, "stem"), x)
    for name, block in network.get_submodule("blocks").named_children():
        first, last = (Parts(network, f"blocks.{name}.conv{place}") for place in (1, 2))
        stride = int(block.get_submodule("conv1").stride[0])  # type: ignore[index]
        rectified = F.relu(x)
        branch = scaled(convolved(last, F.relu(convolved(first, rectified, stride))), last.multiplier)
        projects = isinstance(block.get_submodule("shortcut"), nn.Conv2d)
        x = (convolved(Parts(network, f"blocks.{name}.shortcut"), rectified, stride) if projects else x) + branch
    return classified(network, F.relu(x))


def resnet_by_fixup(network: nn.Module, x: Tensor) -> Tensor:
    """Compute x_{l+1} = relu(skip(x_l) + m (w₂ ∗ (relu(w₁ ∗ (x_l + b₁) + b₂) + b₃)) + b₄), Fixup's figure 1, right.

    The network is a `resnet_cifar` by Fixup; images are (B, C, H, W).
    """
    x = F.relu(shifted(convolved(Parts(network, "stem"), x), Parts(network, "relu").input_bias))
    for name, block in network.get_submodule("blocks").named_children():
        layers = ("conv1", "relu1", "conv2", "relu2")
        first, middle, last, after = (Parts(network, f"blocks.{name}.{layer}") for layer in layers)
        stride = int(block.get_submodule("conv1").stride[0])  # type: ignore[index]
        inside = F.relu(shifted(convolved(first, shifted(x, first.input_bias), stride), middle.input_bias))
        branch = convolved(last, shifted(inside, middle.output_bias))
        branch = shifted(scaled(branch, last.multiplier), after.input_bias)
        shortcut = block.get_submodule("shortcut")
        skip = F.pad(x[:, :, ::2, ::2], shortcut.padding) if isinstance(shortcut, PaddedShortcut) else x
        x = F.relu(skip + branch)
    return classified(network, x)


@torch.no_grad()
def disturbed(network: nn.Module) -> nn.Module:
    """Convert a network to float64 and add normal values to multipliers, biases and layers that start at zero.

    Their standard deviation is 0.3, divided by the root of the inputs for a layer, so that branches carry a signal.
    """
    for parameter in network.double().parameters():
        if parameter.dim() <= 1:
            parameter.add_(0.3 * torch.randn_like(parameter))
        elif not parameter.any():
            parameter.add_(0.3 * torch.randn_like(parameter) / parameter[0].numel() ** 0.5)
    return network


def gradients(network: nn.Module, outputs: Tensor, names: Iterable[str]) -> Tensor:
    """Return the gradient of half the outputs' sum of squares by some parameters, flattened and concatenated."""
    parameters = [network.get_parameter(name) for name in names]
    results = torch.autograd.grad(outputs.square().sum() / 2, parameters, retain_graph=True)
    return torch.cat([gradient.flatten() for gradient in results])


def multipliers(network: nn.Module) -> Tensor:
    """Return the scalar multipliers of a network in their order, shape (number,)."""
    values = [value.detach() for name, value in network.named_parameters() if name.endswith("multiplier")]
    return torch.cat([torch.zeros(0), *values])
