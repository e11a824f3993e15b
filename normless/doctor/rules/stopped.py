"""A check for operations with a derivative of exactly zero, such as rounding, between trainable layers and loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.reach import reachable
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, PRODUCTS, Call, Seen, Tracer
from normless.doctor.facts.ranges import range_of
from normless.doctor.findings import Evidence, NotAsked, Steps, check, finding
from normless.probes import preserve_state

# The gradient of a product is zero if the other factor is: weights, masks and multipliers, which other checks judge.
_FACTORS = PRODUCTS | {
    "mul", "mul_", "__mul__", "__rmul__", "__imul__", "div", "div_", "__truediv__", "bilinear", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention",
    "multi_head_attention_forward", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "feature_alpha_dropout", "lstm", "gru", "rnn_tanh", "rnn_relu",
}  # fmt: skip
# Rectifiers have a slope of zero on one side only: `dead_units` reports them.
# Operations that pass no gradient for a reason that a finding of this kind has given.
_EXPLAINED = {"dead_units": ("relu", "relu_", "relu6"), "softmax_over_one": ("softmax", "log_softmax")}


@check("operations that pass no gradient")
def check_stops(exam: Examination) -> Steps:
    """Find the operation closest to the loss that reads a gradient and passes on zeros."""
    norms = {name: norm for name, norm in exam.passed.gradients.items() if norm is not None}
    if exam.passed.error is not None or not norms:
        raise NotAsked("there is no gradient")
    zeros = [name for name, norm in norms.items() if norm == 0.0]
    if not zeros or exam.passed.loss == 0.0:
        return f"{len(norms)} parameters have a gradient"
    stops = _stops(exam.model, exam, zeros)
    known = {name for found in exam.found for name in _EXPLAINED.get(found.kind, ())}
    stops = [(call, names) for call, names in stops if call.name not in known]
    if not stops and not known and len(zeros) == len(norms):
        yield finding("cancelled_gradient", (), {"parameters": len(norms), "loss": exam.passed.loss})
    if not stops:
        return f"{len(zeros)} of {len(norms)} parameters have a gradient of zero"
    call, names = stops[0]
    if call.range is not None and call.range.low == call.range.high:
        yield finding("softmax_over_one", (call.place,), {"activation": call.name, "value": call.range.low})
        return f"{call.name} at {call.place} is over one value"
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    place = "the loss" if call.path == LOSS else call.place
    line = f", {call.line}" if call.line else ""
    evidence: Evidence = {"operation": call.name.strip("_"), "parameters": len(names), "all_parameters": len(norms)}
    is_whole = len(names) == len(norms)
    yield finding("zero_gradient", layers, evidence, grade=is_whole, place=place, line=line)
    return f"{evidence['operation']} at {place} passes none to {len(names)} of {len(norms)}"


def _stops(model: nn.Module, exam: Examination, zeros: list[str]) -> list[tuple[Call, list[str]]]:
    """Return the calls that stop the gradient, in the order of the backward pass, with the parameters behind them."""
    nodes: dict[Any, Call] = {}
    stopped: list[tuple[Call, Any]] = []

    def note(seen: Seen) -> None:
        if seen.call.name == "softmax":
            seen.call.range = range_of(seen)
        for tensor in seen.made:
            nodes.setdefault(tensor.grad_fn, seen.call)

    def passed(call: Call, node: Any, before: tuple[Tensor | None, ...], after: tuple[Tensor | None, ...]) -> None:
        passes = [gradient for gradient in before if gradient is not None]
        if _any_nonzero(after) and passes and not _any_nonzero(passes) and call.name not in _FACTORS:
            stopped.append((call, node))

    with preserve_state(model, training=True), torch.enable_grad():
        value = Tracer(note).run(model, exam.inputs, exam.targets, exam.loss)
        nodes.pop(None, None)
        handles = [node.register_hook(partial(passed, call, node)) for node, call in nodes.items()]
        value.backward()  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()
        parameters = dict(model.named_parameters())
        behind = [(call, _leaves(node)) for call, node in stopped]
        named = [(call, [name for name in zeros if id(parameters[name]) in leaves]) for call, leaves in behind]
    return [(call, names) for call, names in named if names]


def _any_nonzero(gradients: Any) -> bool:
    return any(gradient is not None and bool(gradient.to_dense().any()) for gradient in gradients)


def _leaves(node: Any) -> set[int]:
    """Return the identities of the parameters that a node of the backward pass leads to."""
    nodes = reachable([node], lambda node: (before for before, _ in node.next_functions if before is not None))
    return {id(node.variable) for node in nodes if hasattr(node, "variable")}
