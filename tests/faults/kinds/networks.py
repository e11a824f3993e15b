"""Networks as their users write them, healthy ones, from which the cases are made, and the batches they train on."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless_lab.data._small_images import digits

WORDS, LENGTH = 32, 16

Batch = Callable[[], tuple[Tensor, Tensor]]
"""Makes inputs and targets."""


def changed(
    batch: Batch, inputs: Callable[[Tensor], Tensor] = torch.clone, targets: Callable[[Tensor], Tensor] = torch.clone
) -> Batch:
    """A batch after a change of its inputs and of its targets."""

    def made() -> tuple[Tensor, Tensor]:
        x, y = batch()
        return inputs(x), targets(y)

    return made


def of_inputs(batch: Batch, targets: Callable[[Tensor], Tensor]) -> Batch:
    """The inputs of a batch with targets computed from them."""

    def made() -> tuple[Tensor, Tensor]:
        x, _ = batch()
        return x, targets(x)

    return made


def images(count: int = 64) -> tuple[Tensor, Tensor]:
    """Scans of digits (count, 1, 8, 8), mean 0 and standard deviation 1, and their classes of 10."""
    batch = next(iter(digits().test_batches(count)))
    return batch[0], batch[1]


def vectors(count: int = 64) -> tuple[Tensor, Tensor]:
    """Points (count, 8) and which of 3 random directions each is closest to."""
    source = torch.Generator().manual_seed(0)
    points, directions = torch.randn(count, 8, generator=source), torch.randn(8, 3, generator=source)
    return points, (points @ directions).argmax(1)


def exclusive_or(count: int = 64) -> tuple[Tensor, Tensor]:
    """Points (count, 2) and whether their signs differ, which no linear function of them tells."""
    points = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    return points, (points[:, 0] * points[:, 1] < 0).long()


def sentences(count: int = 32) -> tuple[Tensor, Tensor]:
    """Token sequences (count, 16) and a class of 4, that of the first token."""
    tokens = torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(0))
    return tokens, tokens[:, 0] % 4


def following(count: int = 16) -> tuple[Tensor, Tensor]:
    """Token sequences (count, 16) and their next tokens; a token is followed by 3 · token + 1 or by itself."""
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(WORDS, (count, LENGTH + 1), generator=source)
    for at in range(1, LENGTH + 1):
        stays = torch.rand(count, generator=source) < 0.2
        tokens[:, at] = torch.where(stays, tokens[:, at - 1], (3 * tokens[:, at - 1] + 1) % WORDS)
    return tokens[:, :-1], tokens[:, 1:]


def per_token(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of logits (N, S, classes) with tokens (N, S)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def mlp(
    widths: Sequence[int],
    activation: Callable[[], nn.Module] = nn.ReLU,
    norm: Callable[[int], nn.Module] | None = None,
) -> nn.Sequential:
    """Linear layers of these widths with a norm, where one is given, and an activation between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for number, (width, following_width) in enumerate(pairwise(widths), 1):
        layers.append(nn.Linear(width, following_width))
        if number < len(widths) - 1:
            layers += [*([norm(following_width)] if norm else []), activation()]
    return nn.Sequential(*layers)


def digits_mlp(hidden: int = 2, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """For scans of digits: hidden layers of width 64, and 10 classes."""
    return mlp([64] * (hidden + 1) + [10], activation)


def convolutions(depth: int, norm: bool = True, width: int = 16) -> nn.Sequential:
    """Convolutions with batch norms and ReLUs, without skip paths, then a mean and a classifier of 10."""
    layers: list[nn.Module] = []
    for number in range(depth):
        layers.append(nn.Conv2d(width if number else 1, width, 3, padding=1, bias=not norm))
        layers += [*([nn.BatchNorm2d(width)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Block(nn.Module):
    """Two convolutions with norms around which the input is added."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = norm(width), norm(width)

    def branch(self, x: Tensor) -> Tensor:
        """What is added to the input."""
        return self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, width, H, W) to images of that shape."""
        return (x + self.branch(x)).relu()


class ResidualNet(nn.Module):
    """A stem, residual blocks of one width, a mean over positions and a classifier of 10."""

    def __init__(
        self,
        blocks: int = 4,
        width: int = 16,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
        block: Callable[[int, Callable[[int], nn.Module]], nn.Module] = Block,
    ) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, padding=1, bias=False), norm(width)
        self.blocks = nn.Sequential(*(block(width, norm) for _ in range(blocks)))
        self.fc = nn.Linear(width, 10)

    def features(self, x: Tensor) -> Tensor:
        """Images (N, 1, H, W) to features (N, width)."""
        return self.blocks(self.norm(self.stem(x)).relu()).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, 1, H, W) to logits (N, 10)."""
        return self.fc(self.features(x))


def without_norm(width: int) -> nn.Module:
    """In the place of a norm, nothing."""
    return nn.Identity()


class Layer(nn.Module):
    """A transformer's layer; norms before the branches, or after the sums."""

    def __init__(self, width: int, heads: int = 4, pre_norm: bool = True, norms: bool = True) -> None:
        super().__init__()
        self.heads, self.pre_norm, self.scale = heads, pre_norm, (width // heads) ** -0.5
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm1, self.norm2 = (nn.LayerNorm(width) if norms else nn.Identity() for _ in range(2))

    def attention(self, x: Tensor, causal: bool) -> Tensor:
        """Multi-head attention of (N, S, width)."""
        query, key, value = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=self.scale)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        """Activations (N, S, width) to activations of that shape."""
        if self.pre_norm:
            x = x + self.attention(self.norm1(x), causal)
            y: Tensor = x + self.mlp(self.norm2(x))
        else:
            x = self.norm1(x + self.attention(x, causal))
            y = self.norm2(x + self.mlp(x))
        return y


class SentenceNet(nn.Module):
    """A transformer that classifies token sequences by their mean, or predicts the next token of each position."""

    def __init__(
        self, depth: int = 2, width: int = 32, pre_norm: bool = True, norms: bool = True, causal: bool = False
    ) -> None:
        super().__init__()
        self.causal = causal
        self.embedding, self.positions = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        for embedding in (self.embedding, self.positions):
            nn.init.normal_(embedding.weight, std=0.02 if norms else 0.7)
        self.layers = nn.ModuleList(Layer(width, pre_norm=pre_norm, norms=norms) for _ in range(depth))
        self.norm = nn.LayerNorm(width) if pre_norm and norms else nn.Identity()
        self.head = nn.Linear(width, WORDS if causal else 4)

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens (N, S) to activations (N, S, width)."""
        return self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (N, S) to logits (N, 4), or (N, S, words)."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.causal)
        x = self.norm(x)
        return self.head(x if self.causal else x.mean(1))


def of_layers(make: Callable[[int], nn.Module], depth: int = 0) -> SentenceNet:
    """A classifier of sentences with two other layers, made from its width, in the place of its own."""
    net = SentenceNet(depth)
    net.layers = nn.ModuleList(make(32) for _ in range(2))
    return net


class RecurrentNet(nn.Module):
    """An embedding, an LSTM or GRU, and a classifier of its last state."""

    def __init__(self, cell: type[nn.RNNBase] = nn.LSTM, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.recurrent = cell(width, width, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (N, S) to logits (N, 4)."""
        return self.head(self.recurrent(self.embedding(tokens))[0][:, -1])
