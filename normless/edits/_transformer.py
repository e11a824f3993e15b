"""The weight matrices of a transformer by use (query, key, value), and its stacks of layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from normless.edits._edit import Edit
from normless.edits._projections import Use
from normless.edits._surgery import Surgery
from normless.residual import Layer, ResidualBlock
from normless.residual._operations import CONVOLUTION


@dataclass(frozen=True)
class Matrix:
    """The part of a weight with one use.

    Attributes:
        path: the path of the weight's layer.
        parameter: the qualified name of the weight.
        use: what its outputs are.
        weight: the weight, without gradients.
        elements: the numbers of its elements in the weight, as one or several matrices (outputs, inputs); None for
            the whole weight of a linear layer or convolution.
    """

    path: str
    parameter: str
    use: Use
    weight: Tensor
    elements: list[Tensor] | None = None

    @torch.no_grad()
    def change(self, function: Callable[[Tensor], Any]) -> None:
        """Apply a function that works in place to the weight, or to each matrix."""
        if self.elements is None:
            function(self.weight)
            return
        values = self.weight.flatten().clone()
        for numbers in self.elements:
            at = numbers.to(values.device)
            part = values[at]
            function(part)
            values[at] = part
        self.weight.copy_(values.view(self.weight.shape))


def matrices(surgery: Surgery, blocks: Iterable[ResidualBlock]) -> dict[ResidualBlock, list[Matrix]]:
    """Find the weight matrices on each block's branch; queries and keys are those that a softmax compares.

    Raises:
        UnsupportedEditError: the network has no queries and keys, a weight is no matrix, or how queries, keys and
            values lie in a weight is not known.
    """
    uses: dict[ResidualBlock, list[Matrix]] = {}
    known = surgery.places.projections.readers
    for block in blocks:
        layers = surgery.places.left(block.branch_layers, "weight")
        for layer in layers:
            readers = chain.from_iterable(known.get(name, ()) for name in layer.parameters)
            if any(surgery.map.flow[at].name in CONVOLUTION for at in readers):
                reason = f"it is not a linear layer but a {layer.description}, and transformers have none on a branch"
                raise surgery.unsupported(layer.path, reason)
        uses[block] = [part for layer in layers for part in parts_of(surgery, layer)]
    if not any(part.use == "query" for parts in uses.values() for part in parts):
        reason = "it is for transformers, and no branch has an attention, a softmax of products of queries and keys"
        raise surgery.unsupported("", reason)
    return uses


def parts_of(surgery: Surgery, layer: Layer, *names: str) -> Iterator[Matrix]:
    """Iterate over the matrices of a weight layer, or of its weights of these names, one for each use.

    Raises:
        UnsupportedEditError: a weight is no matrix, or how its uses lie in it is not known.
    """
    for name in names or layer.parameters:
        weight = surgery.parameter(name).detach()
        if weight.dim() > 1:
            with surgery.log.refusing_at(layer.path, f"it is a {layer.description}, and {{}}"):
                parts = surgery.places.projections.parts(name, tuple(weight.shape))
            yield from (Matrix(layer.path, name, use, weight, elements) for use, elements in parts)


def makes_queries(surgery: Surgery, layer: Layer) -> bool:
    """Whether a layer computes the queries of an attention, alone or together with keys and values."""
    uses = surgery.places.projections.uses
    return any(use == "query" for name in layer.parameters for use, *_ in uses.get(name, ()))


@dataclass(frozen=True)
class StackEdit(Edit):
    """An edit of a transformer's stacks of layers.

    Args:
        decoder: a name in the paths of the decoder's modules only.
    """

    decoder: str = "decoder"

    def stacks(self, surgery: Surgery) -> tuple[tuple[ResidualBlock, ...], tuple[ResidualBlock, ...]]:
        """Return the blocks of the encoder, two per layer, and of the decoder that reads it, three per layer.

        If all blocks or none have the decoder's name, there is one stack.

        Raises:
            UnsupportedEditError: the number of blocks of a stack is not a multiple of those per layer.
        """
        blocks = surgery.places.blocks()
        second = tuple(block for block in blocks if self.decoder in re.split(r"[.#:]", block.name))
        if len(second) in (0, len(blocks)):
            return blocks, ()
        first = tuple(block for block in blocks if block not in second)
        for name, stack, each in (("encoder", first, 2), (self.decoder, second, 3)):
            if len(stack) % each:
                expected = f"a layer of the {name} was expected to have {each} residual sums"
                raise surgery.unsupported(stack[-1].name, f"{expected}, but it has {len(stack)} in all")
        return first, second
