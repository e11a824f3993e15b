"""How well a network tells the tokens of a set, each from those before it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from normless.data import SPECIAL_TOKENS, SetName, TranslationData
from normless.lifting import evaluating
from normless.train.token_loss import token_cross_entropy


class TokenEvaluation(NamedTuple):
    """Mean cross entropy (nats per token, without label smoothing), and share of the tokens that are right."""

    loss: float
    accuracy: float


def evaluate_tokens(
    fabric: Fabric, network: nn.Module, data: TranslationData, name: SetName, max_tokens: int
) -> TokenEvaluation:
    """Pass a whole set through the network in evaluation mode, its true beginnings as the decoder's inputs.

    Args:
        fabric: whose precision is used.
        network: the bare module, on the device of `fabric`.
        data: with the set.
        name: "train", "validation" or "test".
        max_tokens: of a batch.
    """
    loss, right, count = 0.0, 0, 0
    with evaluating(network):
        for _, batch in data.evaluation_batches(name, max_tokens, device=fabric.device):
            with fabric.autocast():
                logits: Tensor = network(batch.source, batch.target)
            logits = logits.to(torch.get_default_dtype())
            loss += float(token_cross_entropy(logits, batch.labels, reduction="sum"))
            right += int(count_right_tokens(logits, batch.labels))
            count += int(batch.label_count)
    return TokenEvaluation(loss / count, right / count)


def count_right_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """How many of the largest logits (B, T, vocabulary) are at the labels (B, T); padding does not count."""
    return ((logits.argmax(-1) == labels) & (labels != SPECIAL_TOKENS.padding)).sum()


def labels_of(data: TranslationData, name: SetName, max_tokens: int) -> Tensor:
    """All labels [N] of a set, its padding left out."""
    labels = [batch.labels.flatten() for _, batch in data.evaluation_batches(name, max_tokens)]
    joined = torch.cat(labels)
    return joined[joined != SPECIAL_TOKENS.padding]
