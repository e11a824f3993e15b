"""Weights that a network's embeddings share with a layer, as tied input and output embeddings do."""

from __future__ import annotations

from torch import nn

from normless.edits.edit import Surgery


def embedding_weights(model: nn.Module) -> set[int]:
    """The `id` of every weight in which an embedding looks up its rows."""
    return {id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))}


def tied_layers(surgery: Surgery) -> set[str]:
    """The paths of weight layers whose weight is an embedding's too: to draw or zero it would change the input."""
    tables = embedding_weights(surgery.model)
    if not tables:
        return set()
    return {
        layer.path
        for layer in surgery.weight_layers()
        if any(id(surgery.model.get_parameter(name)) in tables for name in layer.parameters)
    }
