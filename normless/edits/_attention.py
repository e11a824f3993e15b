"""Edits of attention: norms of queries and keys, soft caps of logits."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from torch import nn

from normless.edits._edit import Edit, edit
from normless.edits._surgery import Surgery
from normless.errors import LiftError
from normless.nn._affine import of_class
from normless.nn._attention import AttentionFunction, AttentionModule, ChangedLogits, LogitProduct, QKNormKind
from normless.residual import _operations as ops
from normless.residual._graph import Dataflow


@dataclass(frozen=True)
class FoundAttention:
    """An attention in the dataflow: the operation that computes its logits, the factors after and before it."""

    index: int
    scale: float = 1.0
    before: float = 1.0


@edit
class AddQKNorm(Edit):
    """Normalize queries and keys over the features of each head, with a learned γ (Henry et al. 2020, QKNorm).

    The scale of the attention is unchanged. Rotary position embeddings come before the norm.

    Args:
        norm: `rms` (Qwen 3, Gemma 3) or `layer`, without β (Dehghani et al. 2023).
    """

    loses = "normalizes queries and keys"

    norm: QKNormKind = "rms"

    def apply(self, surgery: Surgery) -> None:
        if self.norm not in ("rms", "layer"):
            raise surgery.unsupported("", f"the norm is rms or layer, not {self.norm!r}")
        for path, module, width, factor in changed_logits(surgery, "q_norm"):
            module.add_norms(width, self.norm, next(surgery.model.parameters()), factor)
            surgery.record(path, f"{self.norm} norm {width} of queries and of keys")


@edit
class SoftCapLogits(Edit):
    """Replace attention logits z by c · tanh(z / c) before the mask (Gemma Team 2024, Gemma 2, section 2).

    Args:
        cap: c; 50 in Gemma 2.
    """

    loses = "caps the logits of attention"

    cap: float = 50.0

    def apply(self, surgery: Surgery) -> None:
        if not self.cap > 0:
            raise surgery.unsupported("", f"a cap is above 0, got {self.cap}")
        for path, module, *_ in changed_logits(surgery, "cap"):
            module.cap = self.cap
            surgery.record(path, f"logits capped at {self.cap:g}")


def changed_logits(surgery: Surgery, part: str) -> Iterator[tuple[str, ChangedLogits, int, float]]:
    """Convert each attention of a network to a module that can change its logits.

    Yields:
        The module's path, the module, the features of a head, the factor on queries and keys before their product.

    Raises:
        UnsupportedEditError: the network has no attention, an attention already has `part`, or its queries and keys
            cannot be identified.
    """
    with surgery.log.refusing_at(""):
        flow = surgery.lifted.flow
    modules = dict(surgery.model.named_modules())
    whole = [path for path, module in modules.items() if isinstance(module, nn.MultiheadAttention)]
    found = [attention for attention in attentions(flow) if not set(flow[attention.index].modules) & set(whole)]
    if not found and not whole:
        raise surgery.unsupported("", "it has no attention, a softmax of products of queries and keys")
    for path in whole:
        module = _as_module(surgery, path)
        _refuse_second(surgery, path, module, part)
        yield path, module, module.head_dim, 1.0
    done: set[Any] = set()
    for attention in found:
        operation = flow[attention.index]
        path, call = operation.module, operation.made_by
        key = (path, call and call.place)
        if key in done:
            continue
        done.add(key)
        known = modules.get(path)
        if isinstance(known, ChangedLogits):
            _refuse_second(surgery, path, known, part)
            yield path, known, _width(surgery, flow, attention), attention.before
            continue
        if operation.name in ops.NAMED_PRODUCT:
            reason = f"its logits are made by {operation.name}; write them as q @ k.transpose(-2, -1)"
            raise surgery.unsupported(path, reason)
        width = _width(surgery, flow, attention)
        if call is None or call.place is None:
            raise surgery.unsupported(path, "the code that multiplies queries and keys was not found")
        if part == "q_norm" and _is_normalized(flow, attention):
            raise surgery.unsupported(path, "its queries are normalized already")
        is_product = operation.name in ops.PLAIN_PRODUCT
        make = partial(LogitProduct, attention.scale) if is_product else AttentionFunction
        # The steps of a loop that make queries and keys by the same weights are one attention.
        keys = {turn: frozenset(_weights(surgery, flow.parts.get(turn, ()))) or turn for turn in call.turns}
        with surgery.log.refusing_at(path, "its attention is an operator in the forward code: {}"):
            paths = surgery.lifted.calls(call, make, keys, _operands)
        for at in paths:
            child = surgery.get(at)
            assert isinstance(child, ChangedLogits)
            _refuse_second(surgery, path, child, part)
            yield at, child, width, attention.before


def attentions(flow: Dataflow) -> Iterator[FoundAttention]:
    """Find the attention operations of a dataflow, and the products of queries and keys that a softmax reads."""
    for index, operation in enumerate(flow.operations):
        if operation.name in ops.ATTENTION:
            yield FoundAttention(index, before=_factor_before(flow, index))
        if operation.name not in ops.SOFTMAX:
            continue
        at, factors = operation.parents[0], list[float]()
        while flow[at].name in ops.BEFORE_SOFTMAX and flow[at].parents:
            operation = flow[at]
            if operation.name in ("mul", "div") and operation.numbers:
                factors.append(operation.numbers[0] if operation.name == "mul" else 1 / operation.numbers[0])
            at = operation.operands[0] if operation.operands else operation.parents[0]
        if flow[at].name in ops.PRODUCT and not flow[at].parameters and len(flow[at].parents) == 2:
            yield FoundAttention(at, prod(factors), _factor_before(flow, at))


def _factor_before(flow: Dataflow, index: int) -> float:
    """Return the product of the constants that multiply queries and keys before their product."""
    factor = 1.0
    for at in flow[index].operands:
        while flow[at].name in ops.LAYOUT | {"mul", "div"} and len(flow[at].parents) == 1:
            operation = flow[at]
            if operation.numbers and operation.name not in ops.LAYOUT:
                factor *= operation.numbers[0] if operation.name == "mul" else 1 / operation.numbers[0]
            at = operation.parents[0]
    return factor


def _weights(surgery: Surgery, products: Iterable[int]) -> Iterator[str]:
    """Iterate over the weights that make the queries and keys of products."""
    flow, projections = surgery.map.flow, surgery.places.projections
    for operand in (operand for product in products for operand in flow[product].operands):
        for at in projections.weights_before(operand):
            yield from flow[at].factors


def _width(surgery: Surgery, flow: Dataflow, attention: FoundAttention) -> int:
    """Return the number of features of a head."""
    shape = flow[flow[attention.index].operands[0]].shape
    if not shape:
        raise surgery.unsupported(flow[attention.index].module, "the shape of its queries depends on values")
    return shape[-1]


def _is_normalized(flow: Dataflow, attention: FoundAttention) -> bool:
    """Whether the queries of an attention are the rearranged output of a norm."""
    at = flow[attention.index].operands[0]
    while flow[at].name in ops.LAYOUT | {"mul"} and flow[at].parents:
        at = flow[at].parents[0]
    return flow[at].name in ops.NORM or "norm" in flow[at].name


def _as_module(surgery: Surgery, path: str) -> AttentionModule:
    """Replace the `nn.MultiheadAttention` at a path by a module that can change its logits."""
    module = surgery.get(path)
    if isinstance(module, AttentionModule):
        return module
    if type(module) is not nn.MultiheadAttention:
        raise surgery.unsupported(path, f"a {type(module).__name__} may compute more than nn.MultiheadAttention")
    if module.bias_k is not None or module.add_zero_attn:
        raise surgery.unsupported(path, "it adds a learned key or a zero key (add_bias_kv, add_zero_attn)")
    made = of_class(module, AttentionModule)
    made.start()
    surgery.replace(path, made)
    return made


def _refuse_second(surgery: Surgery, path: str, module: ChangedLogits, part: str) -> None:
    if getattr(module, part) is not None:
        what = "a cap" if part == "cap" else "norms of queries and keys"
        raise surgery.unsupported(path, f"it has {what} already")


def _operands(node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    """Return the arguments of a product or of a call of an attention function."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right], []
    if not isinstance(node, ast.Call):
        raise LiftError(f"`{ast.unparse(node)}` is not a product or a call")
    named = ast.unparse(node.func).rpartition(".")[2]
    is_method = named in ops.PLAIN_PRODUCT and len(node.args) == 1 and isinstance(node.func, ast.Attribute)
    own = [node.func.value] if is_method and isinstance(node.func, ast.Attribute) else []
    return [*own, *node.args], [] if named in ops.PLAIN_PRODUCT else node.keywords
