"""Multi-head attention, with the keys and values of earlier steps where they are known."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.residual.declared import Projections


class KeysValues(NamedTuple):
    """What an attention looks up: keys and values of S positions, each (B, heads, S, width / heads)."""

    keys: Tensor
    values: Tensor

    def and_then(self, later: KeysValues) -> KeysValues:
        """These positions and those that follow them."""
        return KeysValues(torch.cat([self.keys, later.keys], 2), torch.cat([self.values, later.values], 2))


class Attention(nn.Module):
    """softmax(Q Kᵀ / √(width / heads)) V in every head, then the output projection (Vaswani et al., section 3.2).

    Keys have no bias, since it would add the same value to all scores of a query, and the softmax ignores that.
    Weights are Xavier uniform, biases zero.

    Args:
        width: features of inputs, keys, values and outputs.
        heads: number of heads, a divisor of `width`.

    Raises:
        ValueError: `heads` does not divide `width`.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"Attention divides its width into equal heads, got width={width} and heads={heads}.")
        self.heads = heads
        self.query, self.key = xavier_linear(width, width), xavier_linear(width, width, bias=False)
        self.value, self.output = xavier_linear(width, width), xavier_linear(width, width)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Attend from x to `memory`; see `attend`."""
        return self.attend(x, memory, mask=mask, causal=causal)[0]

    def attend(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        known: KeysValues | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> tuple[Tensor, KeysValues]:
        """What each position of x finds, and the keys and values it was looked up in.

        Args:
            x: (B, T, width).
            memory: (B, S, width), what keys and values are made of; None where `known` holds all of them.
            known: keys and values of earlier positions; those of `memory` follow them.
            mask: (B or 1, 1, T or 1, S) of truth values: which positions may be looked at; None for all.
            causal: whether the last of the S positions is that of the last of x, and none sees a later one.

        Shapes: to (B, T, width), and keys and values of all S positions.
        """
        queries = self._split(self.query(x))
        if memory is not None:
            new = KeysValues(self._split(self.key(memory)), self._split(self.value(memory)))
            known = new if known is None else known.and_then(new)
        assert known is not None
        length, total = queries.shape[2], known.keys.shape[2]
        if causal and length != total:
            # The fused operation's own causal mask takes the first position of both for the same one.
            seen = torch.ones(length, total, dtype=torch.bool, device=x.device).tril(total - length)
            mask, causal = seen if mask is None else mask & seen, False
        found = F.scaled_dot_product_attention(queries, known.keys, known.values, attn_mask=mask, is_causal=causal)
        joined: Tensor = self.output(found.transpose(1, 2).flatten(2))
        return joined, known

    def _split(self, x: Tensor) -> Tensor:
        """Features as heads: (B, T, width) to (B, heads, T, width / heads)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def projections(self, name: str, *, of_memory: bool = False) -> tuple[Projections, str]:
        """Its weight layers in execution order, for the module that holds it by this name."""
        names = (f"{name}.query", f"{name}.key", f"{name}.value")
        return Projections(*names, of_memory=of_memory), f"{name}.output"


def xavier_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer, its weight Xavier uniform (variance 2 / (fan-in + fan-out)), its bias zero."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
