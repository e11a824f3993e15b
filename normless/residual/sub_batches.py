"""Norms of parts of a batch: modules that hold nothing but batch norms, and run several, or others in evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.lifting import followed, running
from normless.residual.graph import Dataflow

# Divisible by the usual numbers of parts.
_BATCHES = (12, 16, 32, 10, 14)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Identity)


def is_sub_batch_norm(module: nn.Module) -> bool:
    """Whether a module is one norm made of batch norms: of parts of a batch, or of auxiliary examples.

    SlowFast's SubBatchNorm3d, timm's SplitBatchNorm2d and chunks normalized one after the other are; one of several
    norms that is chosen for a whole batch is none. It is run by itself in both modes.
    """
    norms = _norms_in(module)
    if not norms or type(module).__module__.startswith("torch.nn"):
        return False
    runs = {training: _runs(module, training) for training in (True, False)}
    return None not in runs.values() and (runs[True] != runs[False] or len(runs[True] or ()) > 1)


def sub_batch_norms(modules: Mapping[str, nn.Module], norms: Iterable[str]) -> list[str]:
    """The paths of the modules around norms at these paths that are norms of parts of a batch."""
    around = {path.rpartition(".")[0] for path in norms if "." in path}
    # The norms may be in a list of the module.
    holders = around | {path.rpartition(".")[0] for path in around}
    return [path for path in sorted(holders - {""}) if is_sub_batch_norm(modules[path])]


def calls_of(flow: Dataflow, holder: str) -> dict[int, int]:
    """Which run of a module every operation in it belongs to, those of its children too."""
    calls: dict[int, int] = {}
    waiting: list[int] = []
    latest: int | None = None
    for index, operation in enumerate(flow.operations):
        if holder not in operation.modules:
            waiting, latest = [], None
            continue
        latest = operation.call if operation.module == holder else latest
        waiting.append(index)
        if latest is None:
            calls[index] = operation.call
        else:
            calls |= dict.fromkeys(waiting, latest)
            waiting = []
    return calls


def norm_of_evaluation(module: nn.Module) -> _BatchNorm | None:
    """The batch norm whose statistics a sub-batch norm uses in evaluation; None if it is not one alone."""
    ran = {*(_runs(module, False) or ())} if _norms_in(module) else set[str]()
    path = ran.pop() if len(ran) == 1 else None
    found = None if path is None else module.get_submodule(path)
    return found if isinstance(found, _BatchNorm) else None


def affine_of_evaluation(module: nn.Module) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    """γ and β of a sub-batch norm: those of the norm that evaluation runs, or else its own."""
    base = norm_of_evaluation(module)
    owner = base if base is not None and base.affine else module
    gamma, beta = getattr(owner, "weight", None), getattr(owner, "bias", None)
    return gamma, beta


def _norms_in(module: nn.Module) -> list[_BatchNorm]:
    """The batch norms in a module that holds nothing else but vectors; none in any other."""
    inner = [one for one in module.modules() if one is not module and not isinstance(one, _CONTAINERS)]
    norms = [one for one in inner if isinstance(one, _BatchNorm)]
    has_matrices = any(one.dim() > 1 for one in module.parameters(recurse=False))
    return norms if len(norms) == len(inner) and not has_matrices else []


def _runs(module: nn.Module, training: bool) -> list[str] | None:
    """The paths of the batch norms that run, the module's own being empty; None if it does not run by itself."""
    for x in _trials(module):
        ran: list[str] = []
        try:
            with running(module, training), followed(module, lambda path, *_, ran=ran: ran.append(path)):
                y = module(x)
        except Exception:
            continue
        if not isinstance(y, Tensor) or y.shape != x.shape:
            return None
        inner = [path for path in ran if path and isinstance(module.get_submodule(path), _BatchNorm)]
        # A subclass of torch's norm runs itself by a function.
        return ["", *inner] if isinstance(module, _BatchNorm) else inner
    return None


def _trials(module: nn.Module) -> Iterator[Tensor]:
    """Batches that the narrowest of its norms may take."""
    reference = next((one for one in (*module.parameters(), *module.buffers()) if one.is_floating_point()), None)
    widths = [norm.num_features for norm in module.modules() if isinstance(norm, _BatchNorm)]
    for count in _BATCHES:
        for axes in (2, 1, 0, 3):
            x = torch.ones(count, min(widths), *[2] * axes)
            yield x if reference is None else x.to(reference)
