"""The weight matrices of a transformer by what they are for, and its stacks of layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from normless.edits.edit import Surgery
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


@dataclass(frozen=True)
class Matrix:
    """Rows of a weight that serve one use: `parameter` is its qualified name, `path` that of its layer.

    `axis` is that of the outputs: 1 where the weight is (in, out), and the rows are columns.
    """

    path: str
    parameter: str
    use: Use
    part: int = 0
    parts: int = 1
    axis: int = 0

    def rows(self, surgery: Surgery) -> Tensor:
        """The rows themselves, sharing the parameter's memory; to be changed without gradients."""
        weight = surgery.model.get_parameter(self.parameter).detach()
        return weight.chunk(self.parts, self.axis)[self.part]


def matrices(surgery: Surgery, block: ResidualBlock) -> list[Matrix]:
    """The weight matrices on a block's branch, by the names that transformers give to queries, keys and values.

    Raises:
        UnsupportedEditError: a layer's weight is no matrix, is packed in an unknown way, or there are layers side by
            side whose names do not identify the queries and keys.
    """
    found = [part for layer in _weight_layers(block) for part in parts_of(surgery, layer)]
    if block.m < len(block.branch) and not any(
        matrix.use != "other" or _name(matrix.parameter) in _PACKED for matrix in found
    ):
        raise surgery.unsupported(
            block.name,
            f"its branch has layers side by side, {', '.join(block.branch)}, whose names do not say which make "
            "queries and keys",
        )
    return found


def passing_rows(surgery: Surgery, layer: Layer) -> Tensor:
    """The rows of a layer's weight that the branch's end depends on; sharing its memory, without gradients.

    All of them, but for the queries and keys of a weight that holds them and the values.
    """
    name = max(layer.parameters, key=lambda one: surgery.model.get_parameter(one).numel())
    weight = surgery.model.get_parameter(name).detach()
    uses, axis = _uses(surgery, layer, name)
    if len(uses) == 1 or weight.dim() != 2 or weight.shape[axis] % len(uses):
        return weight
    return weight.chunk(len(uses), axis)[uses.index("value")]


def biases(surgery: Surgery, block: ResidualBlock) -> Iterator[Tensor]:
    """The biases of the weight layers on a block's branch; to be changed without gradients."""
    for layer in _weight_layers(block):
        for name in layer.parameters:
            if "bias" in name.rpartition(".")[2]:
                yield surgery.model.get_parameter(name).detach()


def encoder_and_decoder(
    surgery: Surgery, decoder: str
) -> tuple[tuple[ResidualBlock, ...], tuple[ResidualBlock, ...]]:
    """The blocks of the encoder, two for each of its layers, and of the decoder that reads it, three for each.

    Args:
        surgery: of the network.
        decoder: the name in the paths of the decoder's blocks. Where all or none have it there is one stack, and
            the decoder is empty.

    Raises:
        UnsupportedEditError: a stack's blocks are not whole layers.
    """
    blocks = surgery.blocks()
    second = tuple(block for block in blocks if decoder in re.split(r"[.#:]", block.name))
    if len(second) in (0, len(blocks)):
        return blocks, ()
    first = tuple(block for block in blocks if block not in second)
    for name, stack, each in (("encoder", first, 2), (decoder, second, 3)):
        if len(stack) % each:
            raise surgery.unsupported(
                stack[-1].name,
                f"a layer of the {name} was expected to have {each} residual sums, but it has {len(stack)} in all",
            )
    return first, second


def parts_of(surgery: Surgery, layer: Layer) -> Iterator[Matrix]:
    """The matrices that one weight layer holds.

    Raises:
        UnsupportedEditError: its weight is no matrix, or is packed in an unknown way.
    """
    weights = [name for name in layer.parameters if surgery.model.get_parameter(name).dim() > 1]
    for parameter in weights:
        shape = surgery.model.get_parameter(parameter).shape
        if len(shape) != 2:
            raise surgery.unsupported(
                layer.path, f"it is no linear layer but a {layer.description}, and transformers have none on a branch"
            )
        uses, axis = _uses(surgery, layer, parameter)
        if (_name(parameter) in _PACKED_OTHERWISE and len(uses) == 1) or shape[axis] % len(uses):
            raise surgery.unsupported(layer.path, f"how queries, keys and values lie in {parameter} is not known")
        for part, use in enumerate(uses):
            yield Matrix(layer.path, parameter, use, part, len(uses), axis)


def _uses(surgery: Surgery, layer: Layer, parameter: str) -> tuple[tuple[Use, ...], int]:
    """What a weight holds in equal parts, by its name, and the axis along which they lie, that of the outputs."""
    if ":" not in layer.path and is_transposed(surgery.get(layer.path)):
        inputs, outputs = surgery.model.get_parameter(parameter).shape
        packed = _C_ATTN.get(outputs // inputs, ("other",)) if _name(parameter) == "c_attn" else ("other",)
        return ("query",) if _name(parameter) == "q_attn" else packed, 1
    return _PACKED.get(_name(parameter), ("other",)), 0


def _name(parameter: str) -> str:
    """What a weight is called: its module's name, or its own in a module that holds several."""
    path, _, last = parameter.rpartition(".")
    return (path.rpartition(".")[2] if last == "weight" else last.removesuffix("_weight")).lower()


def _weight_layers(block: ResidualBlock) -> Iterator[Layer]:
    """The weight layers of a branch, with queries and keys, which are a gate to the map."""
    return (layer for layer in block.branch_layers if layer.kind == "weight")


@torch.no_grad()
def draw(surgery: Surgery, matrix: Matrix, gain: float) -> None:
    """Draw a matrix anew, normal with Xavier's variance 2·gain² / (fan-in + fan-out), and record it."""
    torch.nn.init.xavier_normal_(matrix.rows(surgery), gain=gain)
    what = matrix.path if matrix.use == "other" else f"{matrix.path}, {matrix.use}"
    surgery.record(matrix.path, f"{what}: weight from xavier × {gain:.4g}")
