"""The network of theorem 3, in which every weight layer of a branch is followed by a ReLU, and its update terms."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RectifiedBlock(nn.Module):
    """f(x) = x + relu(W_m … relu(W_1 x)); weights He normal times a gain. Shapes: (B, width) to the same."""

    def __init__(self, width: int, layers: int, gain: float) -> None:
        super().__init__()
        self.weights = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        for weight in self.weights.parameters():
            nn.init.normal_(weight, std=gain * (2 / width) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """One residual block."""
        h = x
        for weight in self.weights:
            h = torch.relu(weight(h))
        return x + h


class RectifiedNetwork(nn.Module):
    """L blocks and a linear head without biases (Fixup, appendix B.1). Shapes: (B, width) to (B, classes)."""

    def __init__(self, blocks: int, width: int, layers: int, *, classes: int = 4, gain: float = 1.0) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(RectifiedBlock(width, layers, gain) for _ in range(blocks)))
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.head(self.blocks(x))
        return logits


@torch.no_grad()
def closed_form(network: RectifiedNetwork, x: Tensor) -> dict[str, Tensor]:
    """J_l^i = ‖F_l^(i-)‖² (∂f/∂x_l)ᵀ F_l^(i+) (F_l^(i+))ᵀ (∂f/∂x_l) by the weights' names; x: (width,)."""
    stream = [x]
    for block in network.blocks:
        stream.append(block(stream[-1]))
    later = network.head.weight.T
    terms = {"head.weight": stream[-1].square().sum() * torch.eye(len(network.head.weight)).to(x)}
    for index in reversed(range(len(network.blocks))):
        weights = [one.detach() for one in network.blocks[index].parameters()]
        before, masks = [stream[index]], []
        for weight in weights:
            h = weight @ before[-1]
            masks.append(torch.diag((h > 0).to(x)))
            before.append(torch.relu(h))
        after = masks[-1]
        for place in reversed(range(len(weights))):
            gram = later.T @ after @ after.T @ later
            terms[f"blocks.{index}.weights.{place}.weight"] = before[place].square().sum() * gram
            after = after @ weights[place]
            if place:
                after = after @ masks[place - 1]
        later = later + after.T @ later
    return terms
