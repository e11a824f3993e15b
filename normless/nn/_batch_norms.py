"""Variants of batch normalization: ghost, alternating and partial."""

from __future__ import annotations

from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from normless.nn._channels import batch_statistics, move_running_statistics, per_channel, scale_and_shift


def _of_one_size(x: Tensor, count: int) -> list[tuple[Tensor, int]]:
    """Group `count` ghost batches by size; return the examples of each group and its number of ghost batches.

    On the CPU each ghost batch is a group, since a call costs less than moving the examples.
    """
    if x.is_cpu:
        return [(part, 1) for part in x.tensor_split(count)]
    larger, size = x.shape[0] % count, x.shape[0] // count
    parts = torch.split(x, [larger * (size + 1), (count - larger) * size])
    return [(part, ghosts) for part, ghosts in zip(parts, (larger, count - larger), strict=True) if ghosts]


def _side_by_side(x: Tensor, ghosts: int) -> Tensor:
    """Turn ghost batches of one size, (G·B, C, …), into channels of one batch, (B, G·C, …), in its memory format."""
    if ghosts == 1:
        return x
    rows, last = _by_memory(x)
    split = torch.unflatten(rows, 0, (ghosts, -1))
    return split.movedim(0, -2).flatten(-2).movedim(-1, 1) if last else split.transpose(0, 1).flatten(1, 2)


def _one_after_another(x: Tensor, ghosts: int) -> Tensor:
    """Undo `_side_by_side`."""
    if ghosts == 1:
        return x
    rows, last = _by_memory(x)
    if last:
        return torch.unflatten(rows, -1, (ghosts, -1)).movedim(-2, 0).flatten(0, 1).movedim(-1, 1)
    return torch.unflatten(rows, 1, (ghosts, -1)).transpose(0, 1).flatten(0, 1)


def _by_memory(x: Tensor) -> tuple[Tensor, bool]:
    """Move channels to the last axis if they are last in memory, and return whether they are."""
    last = x.movedim(1, -1)
    is_last = x.dim() > 2 and last.is_contiguous() and not x.is_contiguous()
    return (last, True) if is_last else (x, False)


class _GhostBatchNorm(_BatchNorm):
    """Batch normalization by the statistics of ghost batches (De & Smith, appendix A; Hoffer et al. 2017).

    In training a batch of B examples is split into ⌈B / ghost_size⌉ ghost batches of equal size or one example less;
    each is normalized by its own biased variance. The running statistics take one step per batch, towards the mean
    of the ghost batches' means and unbiased variances. Evaluation is that of torch's layer.
    Shapes: (B, C, …) to the same.
    """

    def __init__(self, num_features: int, ghost_size: int = 64, **kwargs: Any) -> None:
        if ghost_size < 1:
            raise ValueError(f"A ghost batch holds at least one example, got ghost_size={ghost_size}.")
        super().__init__(num_features, **kwargs)
        self.ghost_size = ghost_size

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or x.shape[0] <= self.ghost_size:
            return super().forward(x)
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        count = ceil(x.shape[0] / self.ghost_size)
        # With momentum 1, torch's kernel returns the statistics of each ghost batch.
        kept = next((own.dtype for own in (self.weight, self.running_mean) if own is not None), x.dtype)
        means = x.new_zeros(count, self.num_features, dtype=kept)
        variances = x.new_ones(count, self.num_features, dtype=kept)
        outputs: list[Tensor] = []
        first = 0
        for part, ghosts in _of_one_size(x, count):
            mean, variance = (every[first : first + ghosts].view(-1) for every in (means, variances))
            weight, bias = (None if own is None else own.repeat(ghosts) for own in (self.weight, self.bias))
            y = F.batch_norm(_side_by_side(part, ghosts), mean, variance, weight, bias, True, 1.0, self.eps)
            outputs.append(_one_after_another(y, ghosts))
            first += ghosts
        move_running_statistics(self, means.mean(0), variances.mean(0))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def extra_repr(self) -> str:
        text = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{text}, ghost_size={self.ghost_size}"


class GhostBatchNorm1d(_GhostBatchNorm, nn.BatchNorm1d):
    """Ghost batch normalization of (B, C) or (B, C, T); see its base class."""


class GhostBatchNorm2d(_GhostBatchNorm, nn.BatchNorm2d):
    """Ghost batch normalization of (B, C, H, W); see its base class."""


class GhostBatchNorm3d(_GhostBatchNorm, nn.BatchNorm3d):
    """Ghost batch normalization of (B, C, D, H, W); see its base class."""


class _OwnStatistics(_BatchNorm):
    """Batch normalization with statistics that a subclass chooses, in at least float32, as in torch's layer.

    `use_mean` and `use_variance` say whether to subtract the mean and divide by the standard deviation.
    """

    use_mean = use_variance = True

    def _statistics(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and biased variance per channel, shape (C,), of the input x; y is x in a wider dtype."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance = self._statistics(x, y)
        used = mean if self.use_mean else None, variance if self.use_variance else None
        scale, shift = scale_and_shift(*used, self.eps, self.weight, self.bias, like=mean)
        return (y * per_channel(scale, y) + per_channel(shift, y)).to(x.dtype)


class _AlternatingBatchNorm(_OwnStatistics):
    """Batch normalization by the statistics of every other batch (Bjorck et al., section 3.4 and appendix J).

    On the 1st, 3rd, … training batch the layer is batch normalization, including gradients through the statistics,
    and stores μ and the biased σ². On the 2nd, 4th, … it normalizes by the stored values as constants, and the
    running statistics do not change. Evaluation is as in torch's layer.
    Shapes: (B, C, …) to the same.
    """

    latest_mean: Tensor
    latest_variance: Tensor
    reuse_next: Tensor

    def __init__(self, num_features: int, **kwargs: Any) -> None:
        super().__init__(num_features, **kwargs)
        factory = {key: kwargs[key] for key in ("device", "dtype") if key in kwargs}
        self.register_buffer("latest_mean", torch.zeros(num_features, **factory))
        self.register_buffer("latest_variance", torch.ones(num_features, **factory))
        self.register_buffer("reuse_next", torch.tensor(False, device=factory.get("device")))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else _BatchNorm.forward(self, x)

    def _statistics(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        # Both cases without a branch on data, so that the layer can be exported and needs no device sync.
        fresh_mean, fresh_variance = batch_statistics(y)
        reuse = self.reuse_next.clone()
        mean = torch.where(reuse, self.latest_mean, fresh_mean)
        variance = torch.where(reuse, self.latest_variance, fresh_variance)
        with torch.no_grad():
            self.latest_mean.copy_(mean)
            self.latest_variance.copy_(variance)
            self.reuse_next.copy_(~reuse)
            # The running variance is unbiased, as in torch's layer.
            count = x.numel() // x.shape[1]
            move_running_statistics(self, mean, variance * (count / max(count - 1, 1)), moved=~reuse)
        return mean, variance


class AlternatingBatchNorm1d(_AlternatingBatchNorm, nn.BatchNorm1d):
    """Alternating batch normalization of (B, C) or (B, C, T); see its base class."""


class AlternatingBatchNorm2d(_AlternatingBatchNorm, nn.BatchNorm2d):
    """Alternating batch normalization of (B, C, H, W); see its base class."""


class AlternatingBatchNorm3d(_AlternatingBatchNorm, nn.BatchNorm3d):
    """Alternating batch normalization of (B, C, D, H, W); see its base class."""


class _PartialBatchNorm(_OwnStatistics):
    """Batch normalization with only some of μ, σ², γ and β (Bjorck et al., equation 1 and appendix H).

    Per channel, over the batch and all positions,

        y = γ · (x − μ) / √(σ² + ε) + β

    without the parts switched off: no μ is subtracted with `mean=False`, nothing is divided with
    `variance=False`, γ and β are absent with `gamma=False` and `beta=False`. σ² is the biased variance about
    the mean, even if the mean is not subtracted. Evaluation uses running averages, as in torch's layer.
    Shapes: (B, C, …) to the same.
    """

    def __init__(
        self,
        num_features: int,
        *,
        mean: bool = True,
        variance: bool = True,
        gamma: bool = True,
        beta: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_features, **{**kwargs, "affine": True})
        self.use_mean = mean
        self.use_variance = variance
        if not gamma:
            self.register_parameter("weight", None)
        if not beta:
            self.register_parameter("bias", None)

    def _statistics(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if not (self.use_mean or self.use_variance):
            # Without statistics a batch may be one example.
            return y.new_zeros(self.num_features), y.new_ones(self.num_features)
        if self.running_mean is not None and self.running_var is not None:
            if not self.training:
                return self.running_mean, self.running_var
            with torch.no_grad():
                # It moves the running statistics; its output is not used.
                _BatchNorm.forward(self, x)
        return batch_statistics(y)

    def extra_repr(self) -> str:
        parts = (("μ", self.use_mean), ("σ²", self.use_variance), ("γ", self.weight), ("β", self.bias))
        used = "{" + ", ".join(name for name, part in parts if part is not None and part is not False) + "}"
        text = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{text}, parts={used}"


class PartialBatchNorm1d(_PartialBatchNorm, nn.BatchNorm1d):
    """Partial batch normalization of (B, C) or (B, C, T); see its base class."""


class PartialBatchNorm2d(_PartialBatchNorm, nn.BatchNorm2d):
    """Partial batch normalization of (B, C, H, W); see its base class."""


class PartialBatchNorm3d(_PartialBatchNorm, nn.BatchNorm3d):
    """Partial batch normalization of (B, C, D, H, W); see its base class."""
