"""The cross entropy of sentences, per token."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from normless.data import SPECIAL_TOKENS


def token_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float = 0.0,
    padding: int = SPECIAL_TOKENS.padding,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Cross entropy (nats) over all labels that are no padding: their mean, or their sum.

    With label smoothing ε the target of a token is (1 − ε)·one-hot + ε/vocabulary (Szegedy et al. 2016, section 7;
    0.1 in Vaswani et al. 2017, section 5.4).

    Args:
        logits: [B, T, vocabulary].
        labels: int64 [B, T].
        label_smoothing: ε, share of each target spread evenly over the vocabulary.
        padding: the label that does not count.
        reduction: "mean" over the tokens, or "sum", which can be divided by the tokens of several micro-batches.
    """
    return F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=padding,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
