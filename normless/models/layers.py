"""What the reference networks share: the table that lists them, and the layers of the convolutional ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from normless.registry import Registry
from normless.residual.declared import BlockStructure, Structure

MODELS = Registry[Callable[..., nn.Module]]("model")
"""Reference networks by name; `MODELS.register("mine")` decorates a class or a function that returns a network."""


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias, zero padding ⌊size/2⌋, from He's initialization by fan-out.

    Weights are normal with variance 2 / fan-out, fan-out = size² · outputs (He et al. 2015), as in torchvision's
    ResNets and in the code of Fixup's authors, which rescales it; `groups` do not change it.
    """
    layer = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class GlobalAveragePool(nn.Module):
    """Mean over all positions: (B, C, H, W) to (B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        """Average every channel of every example."""
        return x.mean(dim=(2, 3))


def block_structures(network: nn.Module, *stages: str) -> list[tuple[str, BlockStructure]]:
    """The blocks in the named children of a network, in execution order: path and structure of each."""
    return [
        (f"{stage}.{name}", block.residual_structure())  # type: ignore[operator]
        for stage in stages
        for name, block in network.get_submodule(stage).named_children()
    ]


class BlockNetwork(nn.Module):
    """A network for images: the modules of `STEM`, then `blocks`, then those of `HEAD`, each called once."""

    STEM: ClassVar[tuple[str, ...]]
    HEAD: ClassVar[tuple[str, ...]]

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        for name in (*self.STEM, "blocks", *self.HEAD):
            x = getattr(self, name)(x)
        return x

    def residual_structure(self) -> Structure:
        """Name the modules in execution order."""
        return Structure(stem=[*self.STEM], blocks=block_structures(self, "blocks"), head=[*self.HEAD])


def blocks_per_stage(depth: int, layers_outside: int, name: str) -> int:
    """b for a network of depth 6b + layers_outside: three stages of b blocks with two layers each.

    Raises:
        ValueError: the depth is not of that form with b ≥ 1.
    """
    blocks, rest = divmod(depth - layers_outside, 6)
    if rest or blocks < 1:
        nearest = 6 * max(1, round((depth - layers_outside) / 6)) + layers_outside
        raise ValueError(
            f"{name} has depth 6b + {layers_outside} with b ≥ 1 blocks in each of its three stages, "
            f"got depth={depth}; the nearest is {nearest}."
        )
    return blocks
