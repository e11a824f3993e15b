"""A layer, RMS or group norm that a removal freezes: its divisor becomes a constant measured in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

Over = Literal["features", "channels", "example", "groups"]
Mask = str | Callable[..., Tensor | None]

# The weight of a step in the running averages.
_RATE = 0.1


@dataclass
class Tokens:
    """What the norms of one network share: the mask of the tokens that count, and the terms of the auxiliary loss.

    Attributes:
        source: the name of an argument of the network's forward, or a function of its arguments: the mask.
        mask: of this pass, shape (B, T), true at tokens that count; None if all count.
        terms: of the passes since the terms were last read, one for each run of an unfrozen norm.
        keeps_terms: whether norms add terms.
    """

    source: Mask = "attention_mask"
    mask: Tensor | None = None
    terms: list[Tensor] = field(default_factory=list)
    keeps_terms: bool = True

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Find the mask of a pass that begins; a pre-hook of the network."""
        mask = kwargs.get(self.source) if isinstance(self.source, str) else self.source(*args, **kwargs)
        self.mask = mask.detach() != 0 if isinstance(mask, Tensor) and mask.dim() == 2 else None

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokens:
        # Terms belong to the autograd graph of the original.
        memo[id(self)] = copied = Tokens(self.source, self.mask, [], self.keeps_terms)
        return copied


class FreezableNorm(nn.Module):
    """A norm y = γ ⊙ (x − m) / d + β whose divisor d becomes a constant when it is frozen.

        d = √(s² + ε) before,   d = c afterwards

    s² is the variance of x, or E[x²] without `centres`, over the last axis (`features`, as torch's layer norm), over
    axis 1 at each position (`channels`), over all axes of γ (`example`), or over the channels of a group and all
    positions (`groups`). c is the running average of √(s² + ε) over tokens in train mode, by steps. A norm over
    `features` or `channels` subtracts the mean of the token before and afterwards; a norm over positions subtracts a
    running average of its mean once it is frozen.

    Parameters are those of the original norm, under its names; buffers are not part of `state_dict`. A token that
    comes first in its sequence may have a constant of its own. Half-precision inputs are normalized in float32.
    Shapes: those of the original; y has the dtype of x.

    Args:
        over: the axes of the statistics.
        gamma, beta: name and parameter, or None.
        centres: whether the mean is subtracted.
        eps: ε.
        offset: the number that is added to γ.
        groups, channels: the number of groups, and of their channels.
        axes: the number of last axes of `example`.
        position_axis: the axis of tokens in sequence, from the end, or None.
        rest: the modules that the original applies afterwards, by name.
    """

    constant: Tensor
    centre: Tensor
    frozen: Tensor
    sums: Tensor
    measured: Tensor

    def __init__(
        self,
        over: Over,
        gamma: tuple[str, nn.Parameter] | None,
        beta: tuple[str, nn.Parameter] | None,
        *,
        centres: bool,
        eps: float,
        offset: float = 0.0,
        groups: int = 1,
        channels: int = 1,
        axes: int = 1,
        position_axis: int | None = None,
        rest: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.over, self.centres, self.eps, self.offset = over, centres, eps, offset
        self.groups, self.channels, self.axes, self.position_axis = groups, channels, axes, position_axis
        self.gamma_name, self.beta_name = (None if part is None else part[0] for part in (gamma, beta))
        for part in (gamma, beta):
            if part is not None:
                self.register_parameter(*part)
        for name, module in (rest or {}).items():
            self.add_module(name, module)
        self.tokens = Tokens()
        self.has_ended = False
        # In a tuple, since it is not a child: its parameters are those of this norm.
        self.original: tuple[nn.Module, ...] = ()
        device = next((part[1].device for part in (gamma, beta) if part is not None), None)
        # Rows: tokens that come first, all others. Columns: groups. `sums` holds sums of d, counts and sums of m.
        shapes = {"constant": (2, groups), "measured": (2, groups), "sums": (3, 2, groups), "centre": (groups,)}
        for name, shape in {**shapes, "frozen": ()}.items():
            self.register_buffer(name, torch.zeros(shape, device=device), persistent=False)
        self.constant.fill_(1.0)

    @property
    def gamma(self) -> Tensor | None:
        """γ with its offset, or None."""
        value = None if self.gamma_name is None else self._parameters[self.gamma_name]
        return value + self.offset if value is not None and self.offset else value

    @property
    def beta(self) -> Tensor | None:
        """β, or None."""
        return None if self.beta_name is None else self._parameters[self.beta_name]

    @property
    def spans_positions(self) -> bool:
        """Whether the statistics are of several positions, so that the mean is frozen too."""
        return self.over in ("example", "groups")

    def forward(self, x: Tensor) -> Tensor:
        values = x if x.dtype in (torch.float32, torch.float64) else x.float()
        grouped = self._grouped(values)
        first = self._first(x)
        divisor = self._of_rows(self.constant, grouped, first)
        mean = grouped.mean(self._axes(grouped), keepdim=True) if self.centres else None
        if not self.has_ended:
            spread = self._spread(grouped, mean)
            if self.training:
                self._measure(spread, mean, first)
            divisor = torch.lerp(spread, divisor.to(spread.dtype).expand_as(spread), self.frozen.to(spread.dtype))
        if mean is not None and self.spans_positions:
            centre = self._per_group(self.centre, grouped).to(mean.dtype).expand_as(mean)
            mean = torch.lerp(mean, centre, self.frozen.to(mean.dtype))
        y = ((grouped if mean is None else grouped - mean) / divisor).reshape(x.shape)
        gamma, beta = (self._broadcast(part, y) for part in (self.gamma, self.beta))
        y = y if gamma is None else y * gamma
        y = (y if beta is None else y + beta).to(x.dtype)
        for module in self.children():
            y = module(y)
        return y

    def divisors(self, x: Tensor) -> Tensor:
        """Return d of all statistics of x that count, without masked tokens, as a vector in float32 or float64."""
        grouped = self._grouped(x if x.dtype in (torch.float32, torch.float64) else x.float())
        spread = self._spread(grouped, grouped.mean(self._axes(grouped), keepdim=True) if self.centres else None)
        mask = self._mask(spread)
        return spread.flatten() if mask is None else spread[mask.expand_as(spread)]

    @torch.no_grad()
    def update(self) -> None:
        """Add the sums of a step to the running averages, unless the norm is frozen, and begin anew."""
        spread, count, mean = self.sums
        is_new = (count > 0) & (self.frozen == 0)
        self.measured += is_new
        # The mean of the first steps, later a moving average.
        rate = torch.where(is_new, (1 / self.measured.clamp_min(1)).clamp_min(_RATE), 0.0)
        self.constant.lerp_(spread / count.clamp_min(1), rate)
        self.centre.lerp_(mean[1] / count[1].clamp_min(1), rate[1])
        self.sums.zero_()

    def constants(self) -> tuple[Tensor, Tensor]:
        """Return the factor γ / c and the shift β (− m · γ / c for a norm over positions) in float64.

        They have the shape of γ or no axes, those of a norm over groups shape (channels,).
        """
        gamma, beta = self.gamma, self.beta
        scale, centre = 1 / self.constant[1].double(), self.centre.double()
        if self.over == "groups":
            scale, centre = (part.repeat_interleave(self.channels // self.groups) for part in (scale, centre))
        else:
            scale, centre = scale.reshape(()), centre.reshape(())
        scale = scale if gamma is None else scale * gamma.detach().double()
        shift = torch.zeros_like(scale) if beta is None else beta.detach().double()
        return scale, shift - centre * scale if self.centres and self.spans_positions else shift

    def extra_repr(self) -> str:
        return f"over {self.over}, {'centred, ' if self.centres else ''}{'frozen' if self.frozen else 'not frozen'}"

    def _grouped(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, 1, (self.groups, -1)) if self.over == "groups" else x

    def _spread(self, grouped: Tensor, mean: Tensor | None) -> Tensor:
        about = grouped if mean is None else grouped - mean
        return (about.square().mean(self._axes(grouped), keepdim=True) + self.eps).clamp_min(1e-24).sqrt()

    def _axes(self, x: Tensor) -> list[int]:
        if self.over == "groups":
            return list(range(2, x.dim()))
        return [1] if self.over == "channels" else list(range(-self.axes, 0))

    def _per_group(self, values: Tensor, x: Tensor) -> Tensor:
        """Reshape a vector (groups,) to broadcast over the statistics of x."""
        return values.reshape(-1, *[1] * (x.dim() - 2)) if self.over == "groups" else values.reshape(())

    def _broadcast(self, value: Tensor | None, y: Tensor) -> Tensor | None:
        """Reshape γ or β to broadcast over y."""
        if value is None or value.numel() == 1 or self.over == "example":
            return value
        return value.reshape(-1, *[1] * (y.dim() - 2)) if self.over in ("channels", "groups") else value.flatten()

    def _mask(self, x: Tensor) -> Tensor | None:
        """Return the mask of tokens with as many axes as x, or None if x does not have one of its tokens."""
        mask, axis = self.tokens.mask, self.position_axis
        if mask is None or axis is None or x.dim() < -axis or mask.shape != (x.shape[0], x.shape[axis]):
            return None
        shape = [1] * x.dim()
        shape[0], shape[axis] = mask.shape
        return mask.reshape(shape)

    def _first(self, x: Tensor) -> Tensor | None:
        """Return which tokens come first in their sequences, with as many axes as x, or None without sequences."""
        axis = self.position_axis
        if axis is None or x.dim() < -axis or self.spans_positions:
            return None
        mask = self._mask(x)
        if mask is not None:
            return (mask.cumsum(axis) == 1) & mask
        shape = [1] * x.dim()
        shape[axis] = x.shape[axis]
        return (torch.arange(x.shape[axis], device=x.device) == 0).reshape(shape)

    def _measure(self, spread: Tensor, mean: Tensor | None, first: Tensor | None) -> None:
        """Add the statistics of a pass to the sums, and a term to the auxiliary loss."""
        mask = self._mask(spread)
        counts = (spread.new_ones(()) if mask is None else mask.to(spread.dtype)).expand_as(spread)
        if torch.is_grad_enabled() and self.tokens.keeps_terms:
            average, known = self._of_rows(self.constant, spread, first), self._of_rows(self.measured, spread, first)
            own = counts * (known > 0) * (1 - self.frozen)
            self.tokens.terms.append((own * (spread / average - 1).square()).sum() / own.sum().clamp_min(1))
        with torch.no_grad():
            is_first = (spread.new_zeros(()) if first is None else first.to(spread.dtype)).expand_as(spread)
            shares = torch.stack([is_first, 1 - is_first]) * counts
            parts = torch.stack([shares * spread, shares, shares * (0.0 if mean is None else mean)])
            by_group = (
                parts.flatten(4).sum((2, 4)) if self.over == "groups" else parts.flatten(2).sum(2, keepdim=True)
            )
            self.sums += by_group.to(self.sums.dtype)

    def _of_rows(self, rows: Tensor, spread: Tensor, first: Tensor | None) -> Tensor:
        """Return the value of each token's row, to broadcast over the statistics."""
        of_others = self._per_group(rows[1], spread)
        return of_others if first is None else torch.where(first, self._per_group(rows[0], spread), of_others)


def original_of(norm: FreezableNorm) -> nn.Module:
    """Return the norm in whose place a norm was put, with the parameters as they are now."""
    (original,) = norm.original
    for name, parameter in norm._parameters.items():
        original._parameters[name] = parameter
    return original.train(norm.training)
