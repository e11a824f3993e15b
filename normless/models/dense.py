"""Fully connected residual networks, the analytically solvable ones (De & Smith, appendices B and C)."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from normless.models.layers import MODELS
from normless.nn import ResidualSum
from normless.residual.declared import BlockStructure, Structure


def _linear(inputs: int, outputs: int, relu: bool) -> nn.Linear:
    """A linear layer without bias, weights normal: variance 2/fan-in (He) after a ReLU, else 1/fan-in (LeCun)."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu" if relu else "linear")
    return layer


def _unit(inputs: int, outputs: int, relu: bool, index: int) -> list[tuple[str, nn.Module]]:
    """Norm, ReLU if there is one, linear layer, with their names."""
    norm: list[tuple[str, nn.Module]] = [(f"norm{index}", nn.BatchNorm1d(inputs))]
    activation: list[tuple[str, nn.Module]] = [(f"relu{index}", nn.ReLU())] if relu else []
    return [*norm, *activation, (f"linear{index}", _linear(inputs, outputs, relu))]


class DenseBlock(nn.Module):
    """x + f(x), where f repeats norm → (ReLU) → linear. Shapes: (B, width) to the same."""

    def __init__(self, width: int, relu: bool, branch_layers: int) -> None:
        super().__init__()
        units = [_unit(width, width, relu, index + 1) for index in range(branch_layers)]
        self.branch = nn.Sequential(OrderedDict(member for unit in units for member in unit))
        self.sum = ResidualSum()

    def forward(self, x: Tensor) -> Tensor:
        """One residual block."""
        total: Tensor = self.sum(x, self.branch(x))
        return total


@MODELS.register("dense")
class Dense(nn.Module):
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
            raise ValueError(
                f"A dense residual network has at least one block and one layer on each branch, "
                f"got depth={depth} and branch_layers={branch_layers}."
            )
        self.flatten = nn.Flatten()
        self.stem = nn.Sequential(OrderedDict(_unit(in_features, width, relu, 1)))
        self.blocks = nn.Sequential(*(DenseBlock(width, relu, branch_layers) for _ in range(depth)))
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of vectors or images."""
        logits: Tensor = self.classifier(self.blocks(self.stem(self.flatten(x))))
        return logits

    def residual_structure(self) -> Structure:
        """Name the modules in execution order."""
        block = BlockStructure(branch=["branch"])
        return Structure(
            stem=["flatten", "stem"],
            blocks=[(f"blocks.{index}", block) for index in range(len(self.blocks))],
            head=["classifier"],
        )


dense = Dense
