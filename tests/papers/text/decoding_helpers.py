"""Tiny encoder-decoders whose every probability is known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

PADDING, START, END, UNKNOWN = 0, 1, 2, 3


class HashedLanguage(nn.Module):
    """The next token's logits are a random row, chosen by a hash of the source and of all tokens so far.

    `ending` is added to the logits of the end.
    """

    def __init__(self, vocabulary: int, seed: int, sharpness: float = 1.0, ending: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(997, vocabulary, generator=generator, dtype=torch.float64) * sharpness
        table[:, END] += ending
        self.table = nn.Parameter(table)
        self.dropout = nn.Dropout(0.9)
        self.decoded: list[int] = []

    def hash(self, state: int, token: int) -> int:
        return (state * 31 + token + 7) % 997

    def encode(self, source: Tensor) -> dict[str, Any]:
        states = []
        for row in source.tolist():
            state = 1
            for token in row:
                state = self.hash(state, token) if token != PADDING else state
            states.append(state)
        return {"states": torch.tensor(states), "nothing": None}

    def decode(self, tokens: Tensor, memory: Any, cache: Any = None) -> tuple[Tensor, Any]:
        self.decoded.append(tokens.shape[1])
        state = memory["states"] if cache is None else cache[0]["state"]
        logits = []
        for column in tokens.unbind(1):
            state = (state * 31 + column + 7) % 997
            logits.append(self.dropout(self.table[state]))
        return torch.stack(logits, 1), [{"state": state}]

    def log_probabilities(self, source: list[int], prefix: tuple[int, ...]) -> list[float]:
        """Of each token after the start and this prefix, one number at a time."""
        state = 1
        for token in (*(token for token in source if token != PADDING), START, *prefix):
            state = self.hash(state, token)
        values: list[float] = self.table[state].log_softmax(0).tolist()
        return values


class Uncached(nn.Module):
    """A network that decodes all tokens anew."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.encode: Any = network.encode

    def decode(self, tokens: Tensor, memory: Any, cache: Any) -> tuple[Tensor, None]:
        assert cache is None
        logits, _ = self.network.decode(tokens, memory)  # type: ignore[operator]
        return logits, None


class Copying(nn.Module):
    """Says its source, token by token."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(20.0))
        self.vocabulary = vocabulary

    def encode(self, source: Tensor) -> Tensor:
        return nn.functional.pad(source, (0, 1), value=END)

    def decode(self, tokens: Tensor, memory: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        done = 0 if cache is None else cache.shape[1]
        places = torch.arange(done, done + tokens.shape[1]).clamp(max=memory.shape[1] - 1)
        logits = nn.functional.one_hot(memory[:, places], self.vocabulary) * self.scale
        return logits, memory[:, : done + tokens.shape[1]]
