"""What the reference networks share: the table that lists them, and the parts of the convolutional ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from torch import Tensor, nn

from normless.nn import ResidualSum
from normless.registry import Registry
from normless.residual.declared import BlockStructure, Structure

MODELS = Registry[Callable[..., nn.Module]]("model")
"""Reference networks by name; `MODELS.register("mine")` decorates a class or a function that returns a network."""

Names = tuple[str, ...]


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
        return x.mean(dim=(2, 3))


class Block(nn.Module):
    """A residual block by the names of its modules, each called once: after(shortcut(x) + branch(first(x))).

    `projects` says that the shortcut reads first(x), as the branch does, and not x.
    """

    FIRST: ClassVar[Names] = ()
    BRANCH: ClassVar[Names]
    SHORTCUT: ClassVar[str] = "shortcut"
    AFTER_SUM: ClassVar[Names] = ()
    sum: ResidualSum
    projects = False

    def forward(self, x: Tensor) -> Tensor:
        h = _in_turn(self, self.FIRST, x)
        branch = _in_turn(self, self.BRANCH, h)
        skip = getattr(self, self.SHORTCUT)(h if self.projects else x)
        return _in_turn(self, self.AFTER_SUM, self.sum(skip, branch))

    def residual_structure(self) -> BlockStructure:
        return BlockStructure(
            shared=self.FIRST if self.projects else (),
            branch=self.BRANCH if self.projects else self.FIRST + self.BRANCH,
            skip=(self.SHORTCUT,),
            after_sum=self.AFTER_SUM,
            identity_skip=isinstance(getattr(self, self.SHORTCUT), nn.Identity),
        )


class BlockNetwork(nn.Module):
    """A network that runs the modules of `STEM`, then stages of blocks, then those of `HEAD`, each called once."""

    STEM: ClassVar[Names]
    STAGES: ClassVar[Names] = ("blocks",)
    HEAD: ClassVar[Names]

    def forward(self, x: Tensor) -> Tensor:
        return _in_turn(self, (*self.STEM, *self.STAGES, *self.HEAD), x)

    def residual_structure(self) -> Structure:
        blocks = [
            (f"{stage}.{name}", block.residual_structure())  # type: ignore[operator]
            for stage in self.STAGES
            for name, block in self.get_submodule(stage).named_children()
        ]
        return Structure(stem=self.STEM, blocks=blocks, head=self.HEAD)


def _in_turn(module: nn.Module, names: Names, x: Tensor) -> Tensor:
    for name in names:
        x = getattr(module, name)(x)
    return x


def stages(
    block: Callable[[int, int, int], nn.Module], count: int, channels: int, widths: Iterable[int]
) -> nn.Sequential:
    """Stages of `count` blocks for small images; each stage but the first starts with a block of stride 2.

    `block` builds one from its input channels, output channels and stride; `widths` are the channels of each stage.
    """
    blocks = []
    for stage, outputs in enumerate(widths):
        for index in range(count):
            blocks.append(block(channels, outputs, 2 if stage and index == 0 else 1))
            channels = outputs
    return nn.Sequential(*blocks)


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
