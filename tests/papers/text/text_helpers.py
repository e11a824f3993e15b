"""A small classifier of sentences in a file, runs of a moment, and encoder-decoders whose probabilities are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normless_papers.text.config import TextConfig, TranslationConfig

PADDING, START, END, UNKNOWN = 0, 1, 2, 3

NETWORK = '''
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(torch.relu(self.up(self.norm(x)))))


class Words(nn.Module):
    """Residual blocks on each pair of neighbours, and the mean of what they say."""

    def __init__(self, vocabulary, classes, padding, width, blocks):
        super().__init__()
        self.padding = padding
        self.embedding = nn.Embedding(vocabulary, width)
        self.pairs = nn.Linear(2 * width, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.norm, self.classifier = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, tokens):
        seen = (tokens[:, 1:] != self.padding).unsqueeze(-1)
        x = self.embedding(tokens)
        x = self.blocks(self.pairs(torch.cat([x[:, :-1], x[:, 1:]], -1)))
        return self.classifier(self.norm((x * seen).sum(1) / seen.sum(1)))


def words(vocabulary, classes, padding, width=24, blocks=2):
    return Words(vocabulary, classes, padding, width, blocks)


def deaf(vocabulary, classes, padding):
    return nn.Sequential(nn.Embedding(vocabulary, classes))
'''

BERT = (
    "transformers:bert(num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=16, "
    "max_position_embeddings=40)"
)
PAIRS = TranslationConfig(
    model="normless:transformer(layers=1, width=32, heads=2, feed_forward=32, dropout=0.2)",
    data="grammar(train=60, validation=5, test=6)",
    vocabulary=120,
    batch_tokens=600,
    epochs=3,
    rate=3e-3,
    warmup_steps=2,
    longer_by=5,
    beam_width=2,
    bleu_every=2,
    device="cpu",
)


def written(folder: Path) -> str:
    """The path of the file with the network."""
    path = folder / "words.py"
    path.write_text(NETWORK)
    return str(path)


def quick(folder: Path, **settings: object) -> TextConfig:
    """A run of a moment."""
    usual = {"model": f"{written(folder)}:words", "data": "sentiment(train=320, test=80)", "vocabulary": 300}
    return TextConfig.from_dict({**usual, "epochs": 3, "rate": 3e-3, "device": "cpu", **settings})


# The lengths that were decoded; searches restore what a network keeps.
DECODED: list[int] = []


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

    def encode(self, source: Tensor) -> dict[str, Any]:
        states = [hashed(1, [token for token in row if token != PADDING]) for row in source.tolist()]
        return {"states": torch.tensor(states), "nothing": None}

    def decode(self, tokens: Tensor, memory: Any, cache: Any = None) -> tuple[Tensor, Any]:
        DECODED.append(tokens.shape[1])
        state = memory["states"] if cache is None else cache[0]["state"]
        logits = []
        for column in tokens.unbind(1):
            state = (state * 31 + column + 7) % 997
            logits.append(self.dropout(self.table[state]))
        return torch.stack(logits, 1), [{"state": state}]

    def log_probabilities(self, source: list[int], prefix: tuple[int, ...]) -> list[float]:
        """Of each token after the start and this prefix, one number at a time."""
        state = hashed(1, [*(token for token in source if token != PADDING), START, *prefix])
        values: list[float] = self.table[state].log_softmax(0).tolist()
        return values


def hashed(state: int, tokens: list[int]) -> int:
    for token in tokens:
        state = (state * 31 + token + 7) % 997
    return state


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
