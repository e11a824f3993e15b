"""Networks that several rows of the published faults share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mlp(
    *widths: int,
    act: Callable[[], nn.Module] = nn.ReLU,
    flat: bool = False,
    last: Sequence[nn.Module] = (),
) -> nn.Sequential:
    """Return linear layers of these widths, activations between them, a flattening first and further layers last."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*[nn.Flatten()] * flat, *layers[:-1], *last)


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.item = mlp(12, 64, 16), mlp(12, 64, 16)

    def forward(self, query: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.query(query), dim=-1), F.normalize(self.item(item), dim=-1)


def contrastive(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Return the cross entropy of the similarities of all pairs at temperature 0.1."""
    query, item = outputs
    return F.cross_entropy(query @ item.T / 0.1, targets)


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(96, 6), nn.Linear(96, 6)
        self.decoder = mlp(6, 96, 64, last=[nn.Sigmoid()])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + noise * (0.5 * log_variance).exp()), mean, log_variance


class GraphNet(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.inp = nn.Linear(8, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(layers))
        self.out = nn.Linear(32, 3)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        walk = adjacency / adjacency.sum(1, keepdim=True)
        x = self.inp(nodes).relu()
        for layer in self.layers:
            x = layer(walk @ x).relu()
        return self.out(x)


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))).relu()


class TinyResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(12)
        self.layer1 = ResidualBlock(12)
        self.layer2 = ResidualBlock(12)
        self._fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(F.max_pool2d(self.bn(self.conv(x)).relu(), 2))
        return self._fc(self.layer2(x).mean((2, 3)))


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, zeros: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        shape = rank, base.in_features
        self.down = nn.Parameter(torch.zeros(shape) if zeros else 0.3 * torch.randn(shape))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * x @ self.down.T @ self.up.T


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 16, width: int = 32, causal: bool = True) -> None:
        super().__init__()
        self.tok = nn.Embedding(vocabulary, width)
        self.pos = nn.Embedding(64, width)
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.05)
        self.causal = causal

    def forward(self, tokens: Tensor) -> Tensor:
        n, t = tokens.shape
        x = self.tok(tokens) + self.pos(torch.arange(t))
        query, key, value = (part.view(n, t, 2, -1).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.proj(mixed.transpose(1, 2).reshape(n, t, -1))
        x = x + self.mlp(self.ln2(x))
        return self.lm_head(self.ln_f(x))


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy over all tokens of (N, T, V) logits."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Encoder(nn.Module):
    def __init__(self, vocabulary: int, positions: bool, layers: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 32)
        self.position = nn.Parameter(0.5 * torch.randn(32, 32)) if positions else None
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classifier = nn.Linear(32, 2)

    def forward(self, tokens: Tensor, ignore: Tensor | None = None) -> Tensor:
        x = self.embed(tokens)
        if self.position is not None:
            x = x + self.position[: tokens.shape[1]]
        x = self.encoder(x, src_key_padding_mask=ignore)
        if ignore is not None:
            kept = (~ignore).float()[..., None]
            return self.classifier((x * kept).sum(1) / kept.sum(1).clamp(min=1))
        return self.classifier(x.mean(1))
