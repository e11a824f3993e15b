"""Edits of attention: norms of queries and keys, and a cap of the logits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from normless.edits.edit import Edit, edit
from normless.edits.surgery import Surgery
from normless.lifting import LiftError
from normless.nn.affine import of_class
from normless.nn.attention import AttentionFunction, AttentionModule, ChangedLogits, LogitProduct, Norm
from normless.residual.graph import Dataflow
from normless.residual.operations import ATTENTION, LAYOUT, NORM, SOFTMAX

_PRODUCTS = {"matmul", "bmm", "mm"}
# Products whose operands have axes in an order of their own.
_UNNAMED = {"einsum", "baddbmm"}
# What logits pass between the product of queries and keys and the softmax.
_BETWEEN = LAYOUT | {"mul", "div", "add", "sub", "masked_fill", "where", "dropout"}


@dataclass(frozen=True)
class Attention:
    """One attention in the dataflow: the operation that makes its logits, the scales that follow and precede it."""

    index: int
    scale: float = 1.0
    before: float = 1.0


@edit
class AddQKNorm(Edit):
    """Queries and keys are normalized over the features of each head, with a learned γ (Henry et al. 2020, QKNorm).

    The scale of the attention stays what it was; positions that rotate queries and keys come before the norm.

    Args:
        norm: `rms` (Qwen 3, Gemma 3) or `layer`, without β (Dehghani et al. 2023).
    """

    norm: Norm = "rms"

    def apply(self, surgery: Surgery) -> None:
        if self.norm not in ("rms", "layer"):
            raise surgery.unsupported("", f"the norm is rms or layer, not {self.norm!r}")
        for path, module, width, factor in changed_logits(surgery, "q_norm"):
            module.add_norms(width, self.norm, next(surgery.model.parameters()), factor)
            surgery.record(path, f"{self.norm} norm {width} of queries and of keys")


@edit
class SoftCapLogits(Edit):
    """The logits of attention become c · tanh(z / c) before the mask (Gemma Team 2024, Gemma 2, section 2).

    Args:
        cap: c; 50 in Gemma 2.
    """

    cap: float = 50.0

    def apply(self, surgery: Surgery) -> None:
        if not self.cap > 0:
            raise surgery.unsupported("", f"a cap is above 0, got {self.cap}")
        for path, module, *_ in changed_logits(surgery, "cap"):
            module.cap = self.cap
            surgery.record(path, f"logits capped at {self.cap:g}")


def changed_logits(surgery: Surgery, part: str) -> Iterator[tuple[str, ChangedLogits, int, float]]:
    """Every attention of a network as a module that can change its logits.

    With the module come its path, the features of a head, and the factor on queries and keys before their product.

    Refused where there is none, where `part` is there already, and where queries and keys are not to be told.
    """
    with surgery.refusing_at(""):
        flow = surgery.lifted.flow
    modules = dict(surgery.model.named_modules())
    whole = [path for path, module in modules.items() if isinstance(module, nn.MultiheadAttention)]
    found = [one for one in attentions(flow) if not set(flow[one.index].modules) & set(whole)]
    if not found and not whole:
        raise surgery.unsupported("", "it has no attention, a softmax of products of queries and keys")
    for path in whole:
        module = _as_module(surgery, path)
        _refuse_second(surgery, path, module, part)
        yield path, module, module.head_dim, 1.0
    done: set[Any] = set()
    for one in found:
        operation = flow[one.index]
        path, call = operation.module, operation.made_by
        key = (path, call and call.place)
        if key in done:
            continue
        done.add(key)
        known = modules.get(path)
        if isinstance(known, ChangedLogits):
            _refuse_second(surgery, path, known, part)
            yield path, known, _width(surgery, flow, one), one.before
            continue
        if operation.name in _UNNAMED:
            reason = f"its logits are made by {operation.name}; write them as q @ k.transpose(-2, -1)"
            raise surgery.unsupported(path, reason)
        width = _width(surgery, flow, one)
        if call is None or call.place is None:
            raise surgery.unsupported(path, "the code that multiplies queries and keys was not found")
        if part == "q_norm" and _is_normalized(flow, one):
            raise surgery.unsupported(path, "its queries are normalized already")
        is_product = operation.name in _PRODUCTS
        made: list[nn.Module] = [LogitProduct(one.scale) if is_product else AttentionFunction() for _ in call.turns]
        with surgery.refusing_at(path, "its attention is an operator in the forward code: {}"):
            paths = surgery.lifted.calls(call, made, _operands)
        for at in paths:
            child = surgery.get(at)
            assert isinstance(child, ChangedLogits)
            _refuse_second(surgery, path, child, part)
            yield at, child, width, one.before


def attentions(flow: Dataflow) -> Iterator[Attention]:
    """The attention operations of a dataflow, and the products of queries and keys that a softmax reads."""
    for index, operation in enumerate(flow.operations):
        if operation.name in ATTENTION:
            yield Attention(index, before=_factor_before(flow, index))
        if operation.name not in SOFTMAX:
            continue
        at, factors = operation.parents[0], list[float]()
        while flow[at].name in _BETWEEN and flow[at].parents:
            one = flow[at]
            if one.name in ("mul", "div") and one.numbers:
                factors.append(one.numbers[0] if one.name == "mul" else 1 / one.numbers[0])
            at = one.operands[0] if one.operands else one.parents[0]
        if flow[at].name in _PRODUCTS | _UNNAMED and not flow[at].parameters and len(flow[at].parents) == 2:
            yield Attention(at, prod(factors), _factor_before(flow, at))


def _factor_before(flow: Dataflow, index: int) -> float:
    """What numbers queries and keys were multiplied by on their way to their product."""
    factor = 1.0
    for at in flow[index].operands:
        while flow[at].name in LAYOUT | {"mul", "div"} and len(flow[at].parents) == 1:
            one = flow[at]
            if one.numbers and one.name not in LAYOUT:
                factor *= one.numbers[0] if one.name == "mul" else 1 / one.numbers[0]
            at = one.parents[0]
    return factor


def _width(surgery: Surgery, flow: Dataflow, attention: Attention) -> int:
    """The features of a head."""
    shape = flow[flow[attention.index].operands[0]].shape
    if not shape:
        raise surgery.unsupported(flow[attention.index].module, "the shape of its queries depends on values")
    return shape[-1]


def _is_normalized(flow: Dataflow, attention: Attention) -> bool:
    """Whether the queries of an attention are the output of a norm, rearranged."""
    at = flow[attention.index].operands[0]
    while flow[at].name in LAYOUT | {"mul"} and flow[at].parents:
        at = flow[at].parents[0]
    return flow[at].name in NORM or "norm" in flow[at].name


def _as_module(surgery: Surgery, path: str) -> AttentionModule:
    """The `nn.MultiheadAttention` at a path as one that can change its logits."""
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
    """The arguments of a product or of a call of an attention function."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right], []
    if not isinstance(node, ast.Call):
        raise LiftError(f"`{ast.unparse(node)}` is not a product or a call")
    named = ast.unparse(node.func).rpartition(".")[2]
    is_method = named in _PRODUCTS and len(node.args) == 1 and isinstance(node.func, ast.Attribute)
    own = [node.func.value] if is_method and isinstance(node.func, ast.Attribute) else []
    return [*own, *node.args], [] if named in _PRODUCTS else node.keywords
