"""The tables of embeddings, whose weights are read by rows."""

from __future__ import annotations

from torch import nn


def embedding_weights(model: nn.Module) -> set[int]:
    """The `id` of every weight of an embedding."""
    return {id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))}
