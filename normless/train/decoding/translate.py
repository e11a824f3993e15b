"""The translations of a whole set."""

from __future__ import annotations

import torch
from torch import nn

from normless.data import SetName, TranslationData
from normless.train.decoding.beam import beam_search
from normless.train.decoding.greedy import greedy_search


def translate(
    network: nn.Module,
    data: TranslationData,
    name: SetName,
    *,
    width: int = 1,
    penalty: float = 0.6,
    longer_by: int = 50,
    max_tokens: int = 4096,
    device: torch.device | str = "cpu",
) -> list[str]:
    """Translate a set, sentences of like length together, and return the translations in the set's order.

    Args:
        network: with ``encode`` and ``decode``, on the device.
        data: with the vocabulary the network was trained on.
        name: "train", "validation" or "test".
        width: of the beam; 1 for greedy search.
        penalty: strength of the beam's length penalty.
        longer_by: a translation may have so many tokens more than its source.
        max_tokens: of a batch with its padding, times the width of the beam.
        device: of the network.

    Raises:
        TypeError: the network cannot encode and decode.
        ValueError: the width is below 1, or the penalty or `longer_by` negative.
    """
    tokens: dict[int, list[int]] = {}
    for rows, batch in data.evaluation_batches(name, max(1, max_tokens // max(1, width)), device=device):
        if width == 1:
            found = greedy_search(network, batch.source, longer_by=longer_by)
        else:
            found = beam_search(network, batch.source, width=width, penalty=penalty, longer_by=longer_by)
        tokens.update(zip(rows.tolist(), (hypothesis.tokens for hypothesis in found), strict=True))
    return data.vocabulary.decode(tokens[row] for row in range(len(tokens)))
