"""Recognize norms with running statistics from any library, and convert them to torch's batch norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.errors import LiftError, UnsupportedEditError
from normless.residual._classify import NORMS, kind_of
from normless.residual._inside_norms import agree, inside, trials
from normless.residual._sub_batches import is_sub_batch_norm, norm_of_evaluation
from normless.state import running

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def keeps_statistics(module: nn.Module) -> bool:
    """Whether a module is a norm with a running mean and variance per channel.

    This includes frozen batch norms and classes that do not derive from torch's. The module contains no weight layer.
    """
    if isinstance(module, NORMS):
        return isinstance(module, _BatchNorm)
    vectors = [getattr(module, name, None) for name in ("running_mean", "running_var")]
    has_both = all(isinstance(vector, Tensor) and vector.dim() == 1 for vector in vectors)
    return has_both and not any(kind_of(child) in ("weight", "norm") for child in module.children())


def require_finite(model: nn.Module) -> None:
    """Check that the running statistics, γ and β of all norms with running statistics are finite.

    Tensors on the meta device are skipped.

    Raises:
        UnsupportedEditError: a value is not finite; the message names the norm and the tensor.
    """
    for path, module in model.named_modules():
        if not keeps_statistics(module):
            continue
        names = {"running_mean": "running mean", "running_var": "running variance", "weight": "γ", "bias": "β"}
        for name, words in names.items():
            value = getattr(module, name, None)
            if isinstance(value, Tensor) and not value.is_meta and not bool(value.isfinite().all()):
                raise UnsupportedEditError(
                    f"The {words} of {path or 'this norm'}, a {type(module).__name__}, is not finite, so its output "
                    "in evaluation is not finite either. Load an earlier state, or find the cause "
                    "(normless.diagnose names the first value that is not finite)."
                )


def takes_batch_statistics(norm: nn.Module, shape: tuple[int, ...] | None = None) -> bool:
    """Whether a norm uses the statistics of the batch in training; a norm of an unknown class is run to find out."""
    if isinstance(norm, NORMS):
        return isinstance(norm, _BatchNorm)
    if is_sub_batch_norm(norm):
        return True
    for x in trials(norm, None if shape is None else (4, *shape[1:])):
        try:
            with running(norm, True):
                whole, alone = norm(x.clone()), norm(x[:2].clone())
        except Exception:
            continue
        is_like = isinstance(whole, Tensor) and whole.shape == x.shape
        return is_like and not torch.allclose(whole[:2], alone, rtol=1e-4, atol=1e-5)
    return False


def as_batch_norm(norm: nn.Module, shape: tuple[int, ...] | None = None) -> _BatchNorm:
    """Convert a norm with running statistics to torch's batch norm with the same ε, γ, β, statistics and mode.

    γ and β become parameters, even if they were fixed.

    Raises:
        LiftError: the norm computes something else in evaluation, or the number of axes of its input is unknown.
    """
    kind: type[_BatchNorm] | None = next((family for family in BATCH_NORMS if isinstance(norm, family)), None)
    if kind is None and shape is not None and 2 <= len(shape) <= 5:
        kind = BATCH_NORMS[max(len(shape) - 3, 0)]
    # A sub-batch norm becomes its norm of evaluation, with its own γ and β if that norm has none.
    base = norm_of_evaluation(norm) if not isinstance(norm, NORMS) and is_sub_batch_norm(norm) else None
    source = norm if base is None else base
    kind = kind or next((family for family in BATCH_NORMS if isinstance(source, family)), None)
    mean, variance = getattr(source, "running_mean", None), getattr(source, "running_var", None)
    if kind is None:
        raise LiftError(f"the number of input axes of a {type(norm).__name__} is unknown without example inputs")
    owner = source if getattr(source, "weight", None) is not None else norm
    gamma, beta = getattr(owner, "weight", None), getattr(owner, "bias", None)
    reference = next(value for value in (mean, gamma, *norm.parameters()) if isinstance(value, Tensor))
    own = {
        name: getattr(source, name) for name in ("eps", "momentum") if isinstance(getattr(source, name, None), float)
    }
    if isinstance(source, _BatchNorm):
        own["momentum"] = source.momentum
    made = kind(
        int(getattr(source, "num_features", 0)) or reference.numel(),
        **own,
        affine=gamma is not None or beta is not None,
        track_running_stats=mean is not None,
        device=reference.device,
        dtype=reference.dtype,
    )
    given = {"weight": gamma, "bias": beta, "running_mean": mean, "running_var": variance}
    given["num_batches_tracked"] = getattr(source, "num_batches_tracked", None)
    with torch.no_grad():
        for name, value in given.items():
            if isinstance(value, Tensor) and getattr(made, name) is not None:
                getattr(made, name).copy_(value)
                if isinstance(value, nn.Parameter):
                    getattr(made, name).requires_grad_(value.requires_grad)
    made.train(norm.training)
    if type(norm) not in (*BATCH_NORMS, nn.SyncBatchNorm) and mean is not None and not reference.is_meta:
        parts = inside(norm, shape)
        around = [[part.module for part in side] for side in (parts.before, parts.after)]
        if not agree(norm, nn.Sequential(*around[0], made, *around[1]), shape, rtol=1e-4, atol=1e-4):
            raise LiftError(f"a {type(norm).__name__} computes something else in evaluation than a batch norm")
    return made
