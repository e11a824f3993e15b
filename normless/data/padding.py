"""Sentences of unlike length in one array, and batches of them filled up with padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from normless.data.parallel.token_buckets import Integers
from normless.data.special_tokens import SPECIAL_TOKENS


@dataclass(frozen=True)
class Ragged:
    """Sentences of tokens end to end: tokens [Σ length], and where each begins and the last ends [N + 1]."""

    tokens: Integers
    bounds: Integers

    @property
    def lengths(self) -> Integers:
        """[N]."""
        return np.diff(self.bounds)

    def take(self, rows: Integers) -> Ragged:
        """The sentences at some rows."""
        return ragged([self.tokens[self.bounds[row] : self.bounds[row + 1]] for row in rows])

    def padded(self, rows: Integers, padding: int = SPECIAL_TOKENS.padding) -> Tensor:
        """The sentences at some rows [B] as int64 [B, longest], the rest of each row padding."""
        lengths = self.lengths[rows]
        filled = np.arange(lengths.max()) < lengths[:, None]
        padded = np.full(filled.shape, padding)
        padded[filled] = self.tokens[(self.bounds[rows][:, None] + np.arange(lengths.max()))[filled]]
        return torch.from_numpy(padded)


def ragged(sentences: Sequence[ArrayLike]) -> Ragged:
    """Sentences of tokens, each [length], end to end."""
    bounds = np.cumsum([0, *(np.size(sentence) for sentence in sentences)])
    return Ragged(np.concatenate(sentences).astype(np.int64) if sentences else np.empty(0, np.int64), bounds)
