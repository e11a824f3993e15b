"""Sub-batch norms: modules of several batch norms that normalize parts of a batch or differ in evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.recording._modules import ModuleRun, followed
from normless.state import running

# Divisible by the usual numbers of parts.
_BATCHES = (12, 16, 32, 10, 14)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Identity)


def is_sub_batch_norm(module: nn.Module) -> bool:
    """Whether a module is a norm made of batch norms for parts of a batch or for auxiliary examples.

    Examples are SlowFast's SubBatchNorm3d, timm's SplitBatchNorm2d and ghost norms that normalize chunks in turn. A
    module that chooses one of several norms for the whole batch is not a sub-batch norm. The module is run alone, in
    both modes, to find out.
    """
    norms = _norms_in(module)
    if not norms or type(module).__module__.startswith("torch.nn"):
        return False
    runs = {training: _runs(module, training) for training in (True, False)}
    return None not in runs.values() and (runs[True] != runs[False] or len(runs[True] or ()) > 1)


def sub_batch_norms(modules: Mapping[str, nn.Module], norms: Iterable[str]) -> list[str]:
    """Return the paths of the sub-batch norms among the modules around the norms at these paths."""
    around = {path.rpartition(".")[0] for path in norms if "." in path}
    # The norms may be in a list of the module.
    holders = around | {path.rpartition(".")[0] for path in around}
    return [path for path in sorted(holders - {""}) if is_sub_batch_norm(modules[path])]


def norm_of_evaluation(module: nn.Module) -> _BatchNorm | None:
    """Return the batch norm that a sub-batch norm uses in evaluation, None if it does not use exactly one."""
    ran = {*(_runs(module, False) or ())} if _norms_in(module) else set[str]()
    path = ran.pop() if len(ran) == 1 else None
    found = None if path is None else module.get_submodule(path)
    return found if isinstance(found, _BatchNorm) else None


def affine_of_evaluation(module: nn.Module) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    """Return γ and β of a sub-batch norm: those of its norm of evaluation, or else its own."""
    base = norm_of_evaluation(module)
    owner = base if base is not None and base.affine else module
    gamma, beta = getattr(owner, "weight", None), getattr(owner, "bias", None)
    return gamma, beta


def _norms_in(module: nn.Module) -> list[_BatchNorm]:
    """Return the batch norms in a module that contains nothing else except vectors; empty for any other module."""
    inner = [child for child in module.modules() if child is not module and not isinstance(child, _CONTAINERS)]
    norms = [child for child in inner if isinstance(child, _BatchNorm)]
    has_matrices = any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
    return norms if len(norms) == len(inner) and not has_matrices else []


def _runs(module: nn.Module, training: bool) -> list[str] | None:
    """Return the paths of the batch norms that run, empty for the module itself; None if it cannot run alone."""
    for x in _trials(module):
        ran: list[ModuleRun] = []
        try:
            with running(module, training), followed(module, ran.append):
                y = module(x)
        except Exception:
            continue
        if not isinstance(y, Tensor) or y.shape != x.shape:
            return None
        inner = [run.path for run in ran if run.path and isinstance(run.module, _BatchNorm)]
        # A subclass of torch's norm runs itself by a function.
        return ["", *inner] if isinstance(module, _BatchNorm) else inner
    return None


def _trials(module: nn.Module) -> Iterator[Tensor]:
    """Make trial batches that fit the narrowest of the module's norms."""
    reference = next(
        (tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point()), None
    )
    widths = [norm.num_features for norm in module.modules() if isinstance(norm, _BatchNorm)]
    for count in _BATCHES:
        for axes in (2, 1, 0, 3):
            x = torch.ones(count, min(widths), *[2] * axes)
            yield x if reference is None else x.to(reference)
