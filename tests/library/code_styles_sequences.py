"""Networks of sequences and tables in the styles of several kinds of code: attention, gates, windows."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 8


def conv(inputs: int = WIDTH, outputs: int = WIDTH, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2)


class Attention(nn.Module):
    """Attention by einsum; heads are split by a reshape, or by the layers of einops."""

    def __init__(self, layers: Callable[[], tuple[nn.Module, nn.Module]] | None = None) -> None:
        super().__init__()
        self.norm, self.to_qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.split, self.merge = layers() if layers else (nn.Unflatten(-1, (2, -1)), nn.Flatten(-2))
        self.to_out = nn.Linear(WIDTH, WIDTH)
        self.by_layers = layers is not None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(part) for part in self.to_qkv(self.norm(x)).chunk(3, -1))
        if not self.by_layers:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        weights = torch.einsum("bhid,bhjd->bhij", q, k).mul(2**-1).softmax(-1)
        mixed = torch.einsum("bhij,bhjd->bhid", weights, v)
        y: Tensor = self.to_out(self.merge(mixed if self.by_layers else mixed.transpose(1, 2)))
        return y


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH), nn.Dropout(0.1))


class EinsumTransformer(nn.Module):
    """A vision transformer whose layers are pairs in a list, as lucidrains writes it."""

    def __init__(self, layers: Callable[[], tuple[nn.Module, nn.Module]] | None = None) -> None:
        super().__init__()
        self.embed, self.head = nn.Conv2d(3, WIDTH, 2, 2), nn.Linear(WIDTH, 5)
        self.layers = nn.ModuleList(nn.ModuleList([Attention(layers), mlp()]) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        for attention, feed_forward in self.layers:
            x = attention(x) + x
            x = feed_forward(x) + x
        logits: Tensor = self.head(x.mean(1))
        return logits


def rearrangements() -> tuple[nn.Module, nn.Module]:
    from einops.layers.torch import Rearrange

    return Rearrange("b n (h d) -> b h n d", h=2), Rearrange("b h n d -> b n (h d)")


class GatedBlock(nn.Module):
    """A dilated causal convolution, tanh times sigmoid, then residual and skip output (van den Oord et al. 2016)."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.pad, self.dilated = 2 * dilation, nn.Conv1d(WIDTH, 2 * WIDTH, 3, dilation=dilation)
        self.norm = nn.BatchNorm1d(2 * WIDTH)
        self.residual, self.skip = nn.Conv1d(WIDTH, WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, gate = self.norm(self.dilated(F.pad(x, (self.pad, 0)))).chunk(2, 1)
        z = torch.tanh(value) * torch.sigmoid(gate)
        return x + self.residual(z), self.skip(z)


class WaveNet(nn.Module):
    """Gated blocks, whose skip outputs are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv1d(3, WIDTH, 1), nn.Conv1d(WIDTH, 5, 1)
        self.blocks = nn.ModuleList(GatedBlock(2**index) for index in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.flatten(2))
        skips = []
        for block in self.blocks:
            x, skip = block(x)
            skips.append(skip)
        logits: Tensor = self.head(torch.stack(skips).sum(0).relu() + 0 * x).mean(2)
        return logits


class TemporalBlock(nn.Module):
    """Two dilated causal convolutions, chomped (Bai et al. 2018, TCN)."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.chomp, padding = 2 * dilation, 2 * dilation
        self.conv1, self.conv2 = (nn.Conv1d(WIDTH, WIDTH, 3, padding=padding, dilation=dilation) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)[:, :, : -self.chomp].contiguous()))
        y = self.norm2(self.conv2(y)[:, :, : -self.chomp].contiguous())
        return F.relu(x + y)


class TCN(nn.Module):
    """Temporal blocks of growing dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv1d(3, WIDTH, 1), nn.Linear(WIDTH, 5)
        self.blocks = nn.Sequential(TemporalBlock(1), TemporalBlock(2))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(x.flatten(2)))[:, :, -1])
        return logits


class WindowBlock(nn.Module):
    """Attention in windows of a rolled image (Liu et al. 2021, Swin)."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift, self.norm1, self.norm2 = shift, nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.bias = nn.Parameter(torch.zeros(4, 4))

    def attend(self, x: Tensor) -> Tensor:
        """Attention in windows of 2 × 2. Shapes: (B, H, W, C) to the same."""
        b, h, w, c = x.shape
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        windows = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.qkv(windows).chunk(3, -1)
        windows = self.proj((q @ k.transpose(1, 2) * c**-0.5 + self.bias).softmax(-1) @ v)
        x = windows.view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = shortcut + self.attend(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Swin(nn.Module):
    """A plain and a shifted block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Conv2d(3, WIDTH, 2, 2), nn.Sequential(WindowBlock(0), WindowBlock(1))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.embed(x).permute(0, 2, 3, 1))
        logits: Tensor = self.head(self.norm(x).mean((1, 2)))
        return logits


class FTTransformer(nn.Module):
    """A token for every column and one for the class (Gorishniy et al. 2021); residual steps in a method."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, WIDTH)), nn.Parameter(torch.randn(6, WIDTH))
        self.table, self.cls = nn.Embedding(9, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.layers = nn.ModuleList(nn.ModuleDict({"attention": Attention(), "ffn": mlp()}) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        columns = numbers[:, :, None] * self.weight + self.bias
        x = torch.cat([self.cls.expand(len(numbers), -1, -1), columns, self.table(kinds)], 1)
        for layer in self.layers:
            for part in layer.values():
                residual = part(x)
                x = x + residual
        logits: Tensor = self.head(F.relu(self.norm(x[:, 0])))
        return logits
