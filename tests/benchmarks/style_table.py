"""Networks in the styles of public packages, each with its residual blocks as its writer states them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

Stated = str | tuple[str, Sequence[Any]]


@dataclass(frozen=True)
class Style:
    """A class of a network, the expression of its inputs, the weight layers before its blocks, and its blocks.

    A block is `PREFIX: LAYER LAYER + LAYER | LAYER`: the weight layers of each branch, then those of its skip path,
    all with one prefix; with blocks inside its branch it is a pair with their list.
    """

    name: str
    module: str
    inputs: str
    stem: tuple[str, ...]
    blocks: tuple[Stated, ...]
    batched: bool


STYLES: dict[str, Style] = {}


def style(
    inputs: str, stem: str, blocks: Sequence[Stated], *, batched: bool = True
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Enter a class into the table; its network is built without arguments."""

    def enter(network: type[nn.Module]) -> type[nn.Module]:
        name = network.__name__
        STYLES[name] = Style(name, network.__module__, inputs, tuple(stem.split()), tuple(blocks), batched)
        return network

    return enter


def read(stated: Stated) -> dict[str, Any]:
    """A stated block as plain data: its branches, its skip path, the blocks inside."""
    text, inner = (stated, ()) if isinstance(stated, str) else stated
    prefix, _, layers = text.rpartition(": ")
    branches, _, skip = layers.partition("|")
    whole = [[f"{prefix}.{layer}".strip(".") for layer in part.split()] for part in (*branches.split("+"), skip)]
    return {"branches": whole[:-1], "skip": whole[-1], "inner": [read(one) for one in inner]}
