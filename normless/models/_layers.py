"""The registry of reference networks, and the parts of networks that are chains of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from normless.nn import ResidualSum
from normless.registry import Registry
from normless.state import collection_paused

MODELS = Registry[Callable[..., nn.Module]]("model", sources=("normless", "torchvision", "timm", "transformers"))
"""Reference networks by name; `MODELS.register("mine")` decorates a class or a function that returns a network."""

LayerNames = tuple[str, ...]
Members = Mapping[str, nn.Module]


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Make a convolution without bias, with zero padding ⌊size/2⌋ and He's variance 2 / fan-out (He et al. 2015).

    The fan-out is size² · outputs for any number of `groups`, as in torchvision and in the code of Fixup's authors.
    """
    layer = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class GlobalAveragePool(nn.Module):
    """Mean over all positions: (B, C, H, W) to (B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class Block(nn.Module):
    """A residual block of named modules, each called once: after(shortcut(x) + branch(first(x))).

    If `projects` is true, the shortcut is a convolution that reads first(x) instead of x, like the branch.
    Shapes, of images: (B, inputs, H, W) to (B, outputs, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    SHORTCUT: ClassVar[str] = "shortcut"
    sum: ResidualSum

    def __init__(self, first: Members, branch: Members, shortcut: nn.Module, after: Members) -> None:
        super().__init__()
        members = {**first, **branch, self.SHORTCUT: shortcut, "sum": ResidualSum(), **after}
        for name, module in members.items():
            self.add_module(name, module)
        self.first, self.branch_names, self.after = tuple(first), tuple(branch), tuple(after)
        self.projects = bool(first) and isinstance(shortcut, nn.Conv2d)

    def forward(self, x: Tensor) -> Tensor:
        h = _in_turn(self, self.first, x)
        branch = _in_turn(self, self.branch_names, h)
        skip = getattr(self, self.SHORTCUT)(h if self.projects else x)
        return _in_turn(self, self.after, self.sum(skip, branch))


class PreActivation(Block):
    """Units of norm, ReLU and convolution; a shortcut that is a convolution reads the first ReLU."""

    def __init__(self, convs: Sequence[nn.Conv2d], shortcut: nn.Module) -> None:
        members: dict[str, nn.Module] = {}
        for index, layer in enumerate(convs, 1):
            members |= {f"norm{index}": nn.BatchNorm2d(layer.in_channels), f"relu{index}": nn.ReLU()}
            members[f"conv{index}"] = layer
        first = {name: members.pop(name) for name in ("norm1", "relu1")}
        super().__init__(first, members, shortcut, {})


class PostActivation(Block):
    """Units of convolution, norm and ReLU, the last ReLU after the sum."""

    NORM: ClassVar[str] = "norm"

    def __init__(self, convs: Sequence[nn.Conv2d], shortcut: nn.Module) -> None:
        members: dict[str, nn.Module] = {}
        for index, layer in enumerate(convs, 1):
            members |= {f"conv{index}": layer, f"{self.NORM}{index}": nn.BatchNorm2d(layer.out_channels)}
            members[f"relu{index}"] = nn.ReLU()
        name, relu = members.popitem()
        super().__init__({}, members, shortcut, {name: relu})


class Network(nn.Sequential):
    """A network that calls each of its modules once, in order: a stem, stages of blocks, a head."""

    example_shape: tuple[int, ...]
    """The shape of an input example."""

    def example_inputs(self) -> Tensor:
        """Two inputs of standard normal numbers, always the same."""
        generator = torch.Generator().manual_seed(0)
        parameter = next(self.parameters())
        return torch.randn(2, *self.example_shape, generator=generator).to(parameter)


def _in_turn(module: nn.Module, names: LayerNames, x: Tensor) -> Tensor:
    for name in names:
        x = getattr(module, name)(x)
    return x


@collection_paused()
def stages(
    block: Callable[[int, int, int], nn.Module],
    counts: Iterable[int],
    inputs: int,
    widths: Sequence[int],
    *,
    expansion: int = 1,
    stride_last: bool = False,
) -> list[nn.Sequential]:
    """Make stages of blocks that read `inputs` channels and return `expansion` times the width of their stage.

    `block` makes a block from its input channels, width and stride. The stride is 2 in the first block of every stage
    except the first, or with `stride_last` in the last block of every stage except the last.
    """
    built = []
    for stage, (count, width) in enumerate(zip(counts, widths, strict=True)):
        blocks = []
        for index in range(count):
            before, after = index == 0 and stage > 0, index == count - 1 and stage < len(widths) - 1
            blocks.append(block(inputs, width, 2 if (after if stride_last else before) else 1))
            inputs = expansion * width
        built.append(nn.Sequential(*blocks))
    return built
