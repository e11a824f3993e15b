"""The weight matrices of a transformer by use (query, key, value), and its stacks of layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from normless.edits._edit import Edit
from normless.edits._surgery import Surgery
from normless.nn._affine import is_transposed
from normless.residual import Layer, ResidualBlock

ProjectionUse = Literal["query", "key", "value", "other"]

# The equal parts of a matrix with several uses, from top to bottom.
_PACKED: dict[str, tuple[ProjectionUse, ...]] = {
    **dict.fromkeys(("qkv", "in_proj", "to_qkv", "qkv_proj", "wqkv"), ("query", "key", "value")),
    **dict.fromkeys(("kv", "to_kv", "kv_proj"), ("key", "value")),
    **dict.fromkeys(("q", "wq", "to_q", "q_proj", "q_lin", "query", "query_proj"), ("query",)),
    **dict.fromkeys(("k", "wk", "to_k", "k_proj", "k_lin", "key", "key_proj"), ("key",)),
    **dict.fromkeys(("v", "wv", "to_v", "v_proj", "v_lin", "value", "value_proj"), ("value",)),
    # Layers side by side in a gated feed-forward layer.
    **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3", "wi_0", "wi_1", "fc1_g", "fc1_x"), ("other",)),
}
# Packed head by head; or in several ways, unless the outputs lie along the second axis.
_PACKED_OTHERWISE = {"query_key_value", "c_attn", "qkvg"}
# GPT-2's packed projections by the ratio of outputs to inputs; the second is that of a cross attention.
_C_ATTN: dict[int, tuple[ProjectionUse, ...]] = {3: ("query", "key", "value"), 2: ("key", "value")}


class Matrix(NamedTuple):
    """The rows of a weight with one use, or the columns of a weight (in, out).

    `rows` share the weight's memory, without gradients. `parameter` is the weight's qualified name, `path` the path
    of its layer.
    """

    path: str
    parameter: str
    use: ProjectionUse
    rows: Tensor


def matrices(surgery: Surgery, blocks: Iterable[ResidualBlock]) -> dict[ResidualBlock, list[Matrix]]:
    """Find the weight matrices on each block's branch, by the usual names of queries, keys and values.

    Raises:
        UnsupportedEditError: the network has no queries and keys, the names of layers side by side do not identify
            them, or `parts_of` raises it.
    """
    uses: dict[ResidualBlock, list[Matrix]] = {}
    for block in blocks:
        layers = surgery.left(block.branch_layers, "weight")
        uses[block] = parts = [part for layer in layers for part in parts_of(surgery, layer)]
        named = any(part.use != "other" or _name(part.parameter) in _PACKED for part in parts)
        if block.m < len(block.branch) and not named:
            reason = f"its branch has layers side by side, {', '.join(block.branch)}, and their names do not identify"
            raise surgery.unsupported(block.name, f"{reason} queries and keys")
    if not any(part.use == "query" for parts in uses.values() for part in parts):
        reason = "it is for transformers, and no branch has layers with names of queries and keys"
        raise surgery.unsupported("", reason)
    return uses


def passing_rows(surgery: Surgery, layer: Layer) -> Tensor:
    """Return the rows of a layer's weight that reach the branch's end, without packed queries and keys.

    The rows share the weight's memory, without gradients.
    """
    name = max(layer.parameters, key=lambda parameter: surgery.parameter(parameter).numel())
    weight = surgery.parameter(name).detach()
    uses, axis = _uses(surgery, layer, name)
    if len(uses) == 1 or weight.dim() != 2 or weight.shape[axis] % len(uses):
        return weight
    return weight.chunk(len(uses), axis)[uses.index("value")]


def makes_queries(surgery: Surgery, layer: Layer) -> bool:
    """Whether a layer computes the queries of an attention, alone or packed, by the names of its weights."""
    names = [
        parameter
        for parameter in layer.parameters
        if layer.kind == "weight" and surgery.parameter(parameter).dim() > 1
    ]
    uses = {use for name in names for use in _uses(surgery, layer, name)[0]}
    return "query" in uses or (uses == {"other"} and any(_name(name) in _PACKED_OTHERWISE for name in names))


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
        blocks = surgery.blocks()
        second = tuple(block for block in blocks if self.decoder in re.split(r"[.#:]", block.name))
        if len(second) in (0, len(blocks)):
            return blocks, ()
        first = tuple(block for block in blocks if block not in second)
        for name, stack, each in (("encoder", first, 2), (self.decoder, second, 3)):
            if len(stack) % each:
                expected = f"a layer of the {name} was expected to have {each} residual sums"
                raise surgery.unsupported(stack[-1].name, f"{expected}, but it has {len(stack)} in all")
        return first, second


def parts_of(surgery: Surgery, layer: Layer) -> Iterator[Matrix]:
    """Iterate over the matrices of a weight layer; refuse a weight that is no matrix or packed in an unknown way."""
    for parameter in layer.parameters:
        shape = surgery.parameter(parameter).shape
        if len(shape) < 2:
            continue
        if len(shape) > 2:
            reason = f"it is not a linear layer but a {layer.description}, and transformers have none on a branch"
            raise surgery.unsupported(layer.path, reason)
        uses, axis = _uses(surgery, layer, parameter)
        if (_name(parameter) in _PACKED_OTHERWISE and len(uses) == 1) or shape[axis] % len(uses):
            raise surgery.unsupported(layer.path, f"how queries, keys and values lie in {parameter} is not known")
        weight = surgery.parameter(parameter).detach()
        for use, rows in zip(uses, weight.chunk(len(uses), axis), strict=True):
            yield Matrix(layer.path, parameter, use, rows)


def _uses(surgery: Surgery, layer: Layer, parameter: str) -> tuple[tuple[ProjectionUse, ...], int]:
    """Return the uses of a weight's equal parts, by its name, and the axis of the parts, which is that of outputs."""
    if ":" not in layer.path and is_transposed(surgery.get(layer.path)):
        inputs, outputs = surgery.parameter(parameter).shape
        packed = _C_ATTN.get(outputs // inputs, ("other",)) if _name(parameter) == "c_attn" else ("other",)
        return ("query",) if _name(parameter) == "q_attn" else packed, 1
    return _PACKED.get(_name(parameter), ("other",)), 0


def _name(parameter: str) -> str:
    """Return the name of a weight's module, or of the weight itself in a module with several."""
    path, _, last = parameter.rpartition(".")
    return (path.rpartition(".")[2] if last == "weight" else last.removesuffix("_weight")).lower()
