"""The translation of a whole set."""

from __future__ import annotations

from itertools import islice
from typing import Any

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
    rank: int = 0,
    world_size: int = 1,
) -> list[str]:
    """Translate a set, sentences of similar length together, and return the translations in the set's order.

    Args:
        network: with ``encode`` and ``decode``, on the device.
        data: with the vocabulary the network was trained on.
        name: "train", "validation" or "test".
        width: of the beam; 1 for greedy search.
        penalty, longer_by: see `beam_search`.
        max_tokens: of a batch with its padding, times the width of the beam.
        device: of the network.
        rank: of this process, which translates some of the batches.
        world_size: number of processes; each receives all translations.

    Raises:
        TypeError: the network cannot encode and decode.
        ValueError: the width is below 1, or the penalty or `longer_by` negative.
    """
    tokens: dict[int, list[int]] = {}
    batches = data.evaluation_batches(name, max(1, max_tokens // max(1, width)), device=device)
    for rows, batch in islice(batches, rank, None, world_size):
        if width == 1:
            hypotheses = greedy_search(network, batch.source, longer_by=longer_by)
        else:
            hypotheses = beam_search(network, batch.source, width=width, penalty=penalty, longer_by=longer_by)
        tokens.update(zip(rows.tolist(), (hypothesis.tokens for hypothesis in hypotheses), strict=True))
    if world_size > 1:
        parts: list[Any] = [None] * world_size
        torch.distributed.all_gather_object(parts, tokens)
        tokens = {row: sentence for part in parts for row, sentence in part.items()}
    return data.vocabulary.decode(tokens[row] for row in range(len(tokens)))
