"""A small classifier of sentences in a file, and runs that train it in a moment."""

from __future__ import annotations

from pathlib import Path

from normless_papers.text import TextConfig, TranslationConfig

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


def written(folder: Path) -> str:
    """The path of the file with the network."""
    path = folder / "words.py"
    path.write_text(NETWORK)
    return str(path)


def quick(folder: Path, **settings: object) -> TextConfig:
    """A run of a moment."""
    return TextConfig.from_dict(
        {
            "model": f"{written(folder)}:words",
            "data": "sentiment(train=320, test=80)",
            "vocabulary": 300,
            "epochs": 3,
            "rate": 3e-3,
            "device": "cpu",
            **settings,
        }
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
