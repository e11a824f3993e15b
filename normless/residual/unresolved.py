"""The parts of a network that its map could not place, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from normless.residual.blocks import Unresolved
from normless.residual.classify import NORMS
from normless.residual.graph import Dataflow, Operand
from normless.residual.layers import Layers
from normless.residual.sums import SumFinder

# They add and multiply at once, so that no operation holds the branch's output by itself.
_FUSED = {"addmm", "baddbmm", "addbmm", "addcmul", "addcdiv", "lerp", "addmv"}
_VIEWS = {"view", "slice", "select", "permute", "transpose", "narrow", "unsqueeze", "squeeze", "getitem", "diagonal"}
_CONTROL_FLOW = {"cond", "while_loop", "scan", "map_impl", "map"}


def find_unresolved(model: nn.Module, flow: Dataflow, layers: Layers, finder: SumFinder) -> tuple[Unresolved, ...]:
    """Name each thing that cannot be understood once, by its module and the reason."""
    found = [
        *_fused_sums(flow, layers, finder),
        *_sums_into_views(flow),
        *_subgraphs(flow),
        *_idle_norms(model, layers),
    ]
    return tuple(dict.fromkeys(found))


def _fused_sums(flow: Dataflow, layers: Layers, finder: SumFinder) -> Iterator[Unresolved]:
    for index, operation in enumerate(flow.operations):
        if operation.name in _FUSED and index not in layers.owner and isinstance(operation.arguments[0], Operand):
            added = operation.arguments[0].index
            others = [parent for parent in operation.parents if parent != added]
            if others and finder.fork_of(added, [added, *others]) is not None:
                yield Unresolved(
                    operation.module,
                    f"{operation.name} adds and multiplies in one, so that no branch can be separated from its sum; "
                    "write the product and the addition as two operations",
                )


def _sums_into_views(flow: Dataflow) -> Iterator[Unresolved]:
    for operation in flow.operations:
        if not (operation.in_place and operation.arguments and isinstance(operation.arguments[0], Operand)):
            continue
        written = operation.arguments[0].index
        if flow[written].name in _VIEWS and len(operation.parents) > 1 and flow[written].parents:
            (base, *_) = flow[written].parents
            if any(reader > written for reader in flow.consumers[base]):
                yield Unresolved(
                    operation.module,
                    "it writes into a part of a tensor that is read again as a whole, which the dataflow "
                    "does not show; build the whole with torch.cat or torch.where",
                )


def _subgraphs(flow: Dataflow) -> Iterator[Unresolved]:
    for operation in flow.operations:
        if operation.subgraph and (operation.parameters or operation.name in _CONTROL_FLOW):
            yield Unresolved(
                operation.module,
                f"{operation.name} runs a graph of its own, whose layers and sums are not read",
            )


def _idle_norms(model: nn.Module, layers: Layers) -> Iterator[Unresolved]:
    ran = {call.path for call in layers.layers}
    for path, module in model.named_modules():
        learns = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        if isinstance(module, NORMS) and learns and path not in ran:
            yield Unresolved(path, "this norm did not run on these inputs in this mode, so that its γ has no role")
