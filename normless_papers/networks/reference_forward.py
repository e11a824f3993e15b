"""The papers' networks by their formulas, on the weights of our converted networks, and comparisons of both.

The papers' networks written out by their formulas, on the weights of our converted networks, as a reference.

Here scalars multiply and shift activations; a converted network folds them into weights and biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless import residual_map
from normless.models import PaddedShortcut
from normless_papers.claims import Claim, Estimate, check, over_draws
from normless_papers.claims.agreement import ROUNDING, Agreement, agreement, observed, worst_agreement
from normless_papers.experiments.de_smith import built_wide_resnet
from normless_papers.networks.seeded_inputs import convert


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


def blocks_at_start(network: nn.Module, images: Tensor) -> list[Agreement]:
    """Every sum is its skip path, bit for bit, and new branch weights do not change the logits."""
    blocks = residual_map(network).blocks
    sums = [network.get_submodule(block.sum) for block in blocks if block.sum is not None]
    assert len(sums) == len(blocks), "The sums of normless' own networks are modules."
    calls, before = observed(network.eval(), sums, images)
    with torch.no_grad():
        for block in blocks:
            for path in block.branch:
                weight = network.get_submodule(path).get_parameter("weight")
                weight.copy_(10 * weight.std() * torch.randn_like(weight))
    again, after = observed(network, sums, images)
    quantity = "With α = 0 every block's sum is its skip path, whatever the branch computes"
    same = worst_agreement(quantity, [(output, sides[0]) for sides, output in (*calls, *again)])
    return [same, agreement("Other branch weights, ten times larger, give the same logits", after, before)]


def placement(network: nn.Module, images: Tensor) -> list[Agreement]:
    """Outputs and the gradients of the multipliers agree with skip + α (w₂ ∗ … + b₂) for disturbed parameters."""
    disturbed(network).eval()
    x = images.double()
    ours, formula = network(x), wide_resnet_with_multipliers(network, x)
    names = [name for name, _ in network.named_parameters() if name.endswith("multiplier")]
    slopes, expected = (gradients(network, logits, names) for logits in (ours, formula))
    claim = "α multiplies the last convolution with its bias: logits are the formula's"
    return [
        agreement(claim, ours, formula, ROUNDING),
        agreement("So are the gradients of all α", slopes, expected, ROUNDING),
    ]


@dataclass(frozen=True)
class RegularizedFacts:
    """The number of layers with a bias in a network converted by ZeroInit, and the share of features dropped."""

    layers: int
    with_bias: int
    agreements: tuple[Agreement, ...]
    shares: Mapping[str, Estimate]

    def checks(self, drops: Mapping[str, float]) -> list[Claim]:
        """Check that the network is as the papers define it, with these drop probabilities."""
        counts = {"layers": self.layers, "with_bias": self.with_bias}
        biased = check("All convolutions and linear layers have a bias.", self.with_bias == self.layers > 0, **counts)
        dropped = [drop_check(name, drop, self.shares[name]) for name, drop in drops.items()]
        return [biased, *map(Agreement.check, self.agreements), *dropped]


def regularized_facts(
    scheme: str,
    depth: int,
    width: int,
    draws: int,
    dropouts: Mapping[str, str],
    compare: Callable[[nn.Module, nn.Module, Tensor], Agreement],
) -> RegularizedFacts:
    """Measure a Wide-ResNet converted by a scheme that is ZeroInit.

    `dropouts` are schemes by the name of their drop probability, measured over some draws; `compare` adds an
    agreement, given the original network, the converted network and images.
    """
    original, images = built_wide_resnet(depth, width), torch.randn(4, 3, 16, 16)
    network = convert(original, scheme)
    layers, with_bias, zero = biases(original, network)
    agreements = (
        zero,
        compare(original, network, images),
        *blocks_at_start(network, images),
        *placement(convert(original, f"{scheme}(dropout=0)"), images),
    )
    shares = {name: dropped_share(original, dropping, draws) for name, dropping in dropouts.items()}
    return RegularizedFacts(layers, with_bias, agreements, shares)


def biases(original: nn.Module, network: nn.Module) -> tuple[int, int, Agreement]:
    """Count convolutions and linear layers, and those with a bias, and compare the biases with 0."""
    layers = [name for name, module in original.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    parameters = dict(network.named_parameters())
    own = [parameters[f"{name}.bias"] for name in layers if f"{name}.bias" in parameters]
    values = torch.cat([torch.zeros(1), *own])
    zero = agreement("All biases, the classifier's included, start at 0", values, torch.zeros_like(values))
    return len(layers), len(own), zero


def dropped_share(original: nn.Module, scheme: str, draws: int) -> Estimate:
    """Estimate the share of the classifier's features that a scheme drops in training, over some draws."""
    network = convert(original, scheme).train()
    classifier = network.get_submodule(residual_map(network).classifier or "")
    features = torch.ones(draws, int(classifier.get_parameter("weight").shape[1]))
    outputs: Tensor = classifier.get_submodule("before")(features)
    return over_draws((outputs == 0).double().mean(1).tolist())


def drop_check(name: str, drop: float, share: Estimate) -> Claim:
    """Check that the mean share dropped lies within four standard errors of the probability."""
    error = share.deviation / share.n**0.5
    claim = f"Of the features before the classifier {drop:g} are dropped ({name}), within four standard errors."
    holds = abs(share.mean - drop) <= 4 * error
    return check(claim, holds, measured=share.mean, expected=drop, standard_error=error)
