"""The weight matrices of a transformer by what they are for, and its stacks of layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from normless.edits.edit import Edit
from normless.edits.surgery import Surgery
from normless.nn.affine import is_transposed
from normless.residual import Layer, ResidualBlock

Use = Literal["query", "key", "value", "other"]

# What a matrix of several uses holds, in equal parts one below the other.
_PACKED: dict[str, tuple[Use, ...]] = {
    **dict.fromkeys(("qkv", "in_proj", "to_qkv", "qkv_proj", "wqkv"), ("query", "key", "value")),
    **dict.fromkeys(("kv", "to_kv", "kv_proj"), ("key", "value")),
    **dict.fromkeys(("q", "wq", "to_q", "q_proj", "q_lin", "query", "query_proj"), ("query",)),
    **dict.fromkeys(("k", "wk", "to_k", "k_proj", "k_lin", "key", "key_proj"), ("key",)),
    **dict.fromkeys(("v", "wv", "to_v", "v_proj", "v_lin", "value", "value_proj"), ("value",)),
    # Side by side as well, in a gated feed-forward layer.
    **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3", "wi_0", "wi_1", "fc1_g", "fc1_x"), ("other",)),
}
# Packed head by head; or in several ways, but where the outputs lie along the second axis.
_PACKED_OTHERWISE = {"query_key_value", "c_attn", "qkvg"}
# GPT-2's packed projections by how many times their inputs they put out; the second are those of a cross attention.
_C_ATTN: dict[int, tuple[Use, ...]] = {3: ("query", "key", "value"), 2: ("key", "value")}


class Matrix(NamedTuple):
    """Rows of a weight that serve one use, sharing its memory, without gradients; columns of a weight (in, out).

    `parameter` is the weight's qualified name, `path` that of its layer.
    """

    path: str
    parameter: str
    use: Use
    rows: Tensor


def matrices(surgery: Surgery, blocks: Iterable[ResidualBlock]) -> dict[ResidualBlock, list[Matrix]]:
    """The weight matrices on each block's branch, by the names that transformers give to queries, keys and values.

    A network without queries and keys is refused, layers side by side whose names do not identify them, and what
    `parts_of` refuses.
    """
    uses: dict[ResidualBlock, list[Matrix]] = {}
    for block in blocks:
        layers = surgery.left(block.branch_layers, "weight")
        uses[block] = parts = [part for layer in layers for part in parts_of(surgery, layer)]
        named = any(part.use != "other" or _name(part.parameter) in _PACKED for part in parts)
        if block.m < len(block.branch) and not named:
            reason = (
                f"its branch has layers side by side, {', '.join(block.branch)}, whose names do not say which make"
            )
            raise surgery.unsupported(block.name, f"{reason} queries and keys")
    if not any(part.use == "query" for parts in uses.values() for part in parts):
        reason = "it is for transformers, and no branch has layers that are named as queries and keys"
        raise surgery.unsupported("", reason)
    return uses


def passing_rows(surgery: Surgery, layer: Layer) -> Tensor:
    """The rows of a layer's weight that the branch's end depends on; sharing its memory, without gradients.

    All but the queries and keys of a weight that holds them and the values.
    """
    name = max(layer.parameters, key=lambda one: surgery.parameter(one).numel())
    weight = surgery.parameter(name).detach()
    uses, axis = _uses(surgery, layer, name)
    if len(uses) == 1 or weight.dim() != 2 or weight.shape[axis] % len(uses):
        return weight
    return weight.chunk(len(uses), axis)[uses.index("value")]


def makes_queries(surgery: Surgery, layer: Layer) -> bool:
    """Whether a layer makes the queries of an attention, alone or among others, by the names of its weights."""
    names = [one for one in layer.parameters if layer.kind == "weight" and surgery.parameter(one).dim() > 1]
    uses = {use for name in names for use in _uses(surgery, layer, name)[0]}
    return "query" in uses or (uses == {"other"} and any(_name(name) in _PACKED_OTHERWISE for name in names))


@dataclass(frozen=True)
class StackEdit(Edit):
    """An edit of a transformer's stacks of layers.

    Args:
        decoder: the name in the paths of a decoder's modules that the encoder's do not have.
    """

    decoder: str = "decoder"

    def stacks(self, surgery: Surgery) -> tuple[tuple[ResidualBlock, ...], tuple[ResidualBlock, ...]]:
        """The blocks of the encoder, two for each of its layers, and of the decoder that reads it, three for each.

        Where all or none have the decoder's name there is one stack. One of blocks that are not whole layers is
        refused.
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
    """The matrices that one weight layer holds; refused where it is no matrix, or packed in an unknown way."""
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


def _uses(surgery: Surgery, layer: Layer, parameter: str) -> tuple[tuple[Use, ...], int]:
    """What a weight holds in equal parts, by its name, and the axis along which they lie, that of the outputs."""
    if ":" not in layer.path and is_transposed(surgery.get(layer.path)):
        inputs, outputs = surgery.parameter(parameter).shape
        packed = _C_ATTN.get(outputs // inputs, ("other",)) if _name(parameter) == "c_attn" else ("other",)
        return ("query",) if _name(parameter) == "q_attn" else packed, 1
    return _PACKED.get(_name(parameter), ("other",)), 0


def _name(parameter: str) -> str:
    """What a weight is called: its module's name, or its own in a module that holds several."""
    path, _, last = parameter.rpartition(".")
    return (path.rpartition(".")[2] if last == "weight" else last.removesuffix("_weight")).lower()
