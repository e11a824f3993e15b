"""Fully connected residual networks, which can be solved analytically (De & Smith, appendices B and C)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from normless.models._layers import MODELS, Block, Network


def _unit(inputs: int, outputs: int, relu: bool, index: int) -> list[tuple[str, nn.Module]]:
    """Make a norm, an optional ReLU and a linear layer with variance 2/fan-in after a ReLU, else 1/fan-in."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu" if relu else "linear")
    activation = [(f"relu{index}", nn.ReLU())] if relu else []
    return [(f"norm{index}", nn.BatchNorm1d(inputs)), *activation, (f"linear{index}", layer)]


class DenseBlock(Block):
    """x + f(x), where f repeats norm → (ReLU) → linear. Shapes: (B, width) to the same."""

    def __init__(self, width: int, relu: bool, branch_layers: int) -> None:
        units = [_unit(width, width, relu, index + 1) for index in range(branch_layers)]
        branch = nn.Sequential(OrderedDict(member for unit in units for member in unit))
        super().__init__({}, {"branch": branch}, nn.Identity(), {})


@MODELS.register("dense")
class Dense(Network):
    """A fully connected residual network (De & Smith, appendices B and C).

        X¹ = W⁰ φ(B(X⁰)),   X^{l+1} = X^l + W^l φ(B(X^l)),   logits from the last

    B is batch normalization, φ the ReLU or nothing. The scheme `none` removes B. Weights are He normal
    (fan-in) with ReLU and LeCun normal without.

    Args:
        depth: number of residual blocks.
        width: features of every hidden layer; 1000 in the paper.
        classes: number of logits.
        in_features: features of the input; images are flattened to them.
        relu: whether φ is the ReLU (appendix C) or the identity (appendix B).
        branch_layers: weight layers on each branch; 1 in the paper, 2 or more for Fixup.

    Shapes: (B, in_features) or (B, C, H, W) with C·H·W = in_features, to logits (B, classes).

    Raises:
        ValueError: depth or branch_layers is below 1.
    """

    def __init__(
        self,
        depth: int = 10,
        width: int = 1000,
        classes: int = 10,
        in_features: int = 100,
        relu: bool = True,
        branch_layers: int = 1,
    ) -> None:
        super().__init__()
        if depth < 1 or branch_layers < 1:
            numbers = f"depth={depth} and branch_layers={branch_layers}"
            raise ValueError(f"A dense network has at least one block and one layer on each branch, got {numbers}.")
        self.example_shape = (in_features,)
        self.flatten = nn.Flatten()
        self.stem = nn.Sequential(OrderedDict(_unit(in_features, width, relu, 1)))
        self.blocks = nn.Sequential(*(DenseBlock(width, relu, branch_layers) for _ in range(depth)))
        self.classifier = nn.Linear(width, classes)
