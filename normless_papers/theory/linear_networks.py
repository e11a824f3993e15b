"""Training of one layer of a linear network as linear systems with the matrix of the later layers.

In A_t … A_2 A_1 x = y only the layer A_i is trained. With Ā = A_t … A_(i+1), the layer's inputs R = A_(i-1) … A_1 x
and their decomposition R = U (Σ 0) V*,

    ||Ā A_i R - y||² = ||Ā Z - Ȳ||² + C,    Z = A_i U Σ,  Ȳ = the first n columns of y V,  C = ||the others||²

and every column of Z is an independent linear system (proposition 1 of "Understanding batch normalization", Bjorck
et al. 2018, appendix C, equations 6 to 8). The condition number κ(Ā) determines the speed of gradient descent; see
`gradient_descent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearSystems:
    """The problem min ||Ā Z - Ȳ||² + C, a linear system per column of Z.

    Attributes:
        matrix, targets: Ā of shape (outputs, p) and Ȳ of shape (outputs, n).
        constant: C, the part of the loss that does not depend on the layer.
        basis, scales: U of shape (n, n) and the diagonal of Σ, shape (n,).
    """

    matrix: Tensor
    targets: Tensor
    constant: float
    basis: Tensor
    scales: Tensor

    def variables(self, weight: Tensor) -> Tensor:
        """Compute Z = A_i U Σ for a weight A_i, both of shape (p, n)."""
        return weight @ self.basis * self.scales

    def weight(self, variables: Tensor) -> Tensor:
        """Compute A_i for the variables Z, both of shape (p, n)."""
        return variables / self.scales @ self.basis.T

    def column_losses(self, variables: Tensor) -> Tensor:
        """Compute ||Ā z_j - ȳ_j||² of every column z_j of Z, shape (n,); their sum plus C is the network's loss."""
        return (self.matrix @ variables - self.targets).square().sum(dim=0)

    def solution(self) -> Tensor:
        """Solve for Z at the minimum, shape (p, n), each column by least squares."""
        columns = [torch.linalg.lstsq(self.matrix, column.unsqueeze(1)).solution for column in self.targets.T]
        return torch.cat(columns, dim=1)

    def minimum(self) -> float:
        """Return the minimum of the loss over the layer, including C."""
        return float(self.column_losses(self.solution()).sum()) + self.constant


def linear_systems(weights: Sequence[Tensor], layer: int, inputs: Tensor, targets: Tensor) -> LinearSystems:
    """Reduce the training of one layer of a linear network to independent linear systems, in float64.

    Args:
        weights: A_1, …, A_t in the order in which they are applied, A_k of shape (n_k, n_(k-1)).
        layer: index of the trained layer, 0 for A_1.
        inputs: x, one column per sample, shape (n_0, m).
        targets: y, shape (n_t, m).

    Raises:
        ValueError: no such layer, incompatible shapes, fewer samples than features, or rank-deficient inputs of the
            layer or product of the later layers.
    """
    if not 0 <= layer < len(weights):
        raise ValueError(f"Expected a layer between 0 and {len(weights) - 1}, got {layer}.")
    _check_shapes(weights, inputs, targets)
    entering = inputs.double()
    for weight in weights[:layer]:
        entering = weight.double() @ entering
    matrix = torch.eye(len(weights[layer]), dtype=torch.float64, device=entering.device)
    for weight in weights[layer + 1 :]:
        matrix = weight.double() @ matrix
    features, samples = entering.shape
    if samples < features:
        raise ValueError(f"Expected at least as many samples as features, got {samples} samples of {features}.")
    for name, factor, rank in (("inputs of", entering, features), ("layers after", matrix, matrix.shape[1])):
        if int(torch.linalg.matrix_rank(factor)) < rank:
            raise ValueError(f"Expected the {name} the trained layer to have full rank {rank}, but they do not.")
    basis, scales, right = torch.linalg.svd(entering)
    rotated = targets.double() @ right.T
    constant = float(rotated[:, features:].square().sum())
    return LinearSystems(matrix, rotated[:, :features], constant, basis, scales)


def _check_shapes(weights: Sequence[Tensor], inputs: Tensor, targets: Tensor) -> None:
    shapes = [tuple(matrix.shape) for matrix in (inputs, *weights, targets)]
    widths = [len(inputs), *map(len, weights)]
    if any(shape != (rows, columns) for shape, (columns, rows) in zip(shapes[1:-1], pairwise(widths), strict=True)):
        raise ValueError(f"Expected weights that can be multiplied, got inputs, weights and targets {shapes}.")
    if shapes[-1] != (widths[-1], inputs.shape[1]):
        raise ValueError(f"Expected a column of targets per sample, got inputs, weights and targets {shapes}.")
