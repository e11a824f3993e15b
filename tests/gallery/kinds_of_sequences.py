"""Networks of three kinds with tokens or signals as inputs, as others write them: text, patches, audio."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gallery.kinds_of_images import DIGITS
from gallery.row import adamw, entropy, row

TEXT = "randint(96, (4, 8))"


def each(*blocks: str, count: int = 2) -> list[str]:
    """The statements for each layer, in turn."""
    return [block.format(number) for number in range(count) for block in blocks]


class Attention(nn.Module):
    """Self-attention of several heads, on request causal or with normalized queries and keys."""

    def __init__(self, width: int, heads: int = 2, causal: bool = False, qk_norm: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm = nn.RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(width // heads) if qk_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = self.q_norm(q) @ self.k_norm(k).transpose(-2, -1) / (width // self.heads) ** 0.5
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    """Two layers with GELU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class SwiGLU(nn.Module):
    """LLaMA's gated feed-forward layer."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class PreNormBlock(nn.Module):
    """x + attention(norm(x)), x + feed-forward(norm(x))."""

    def __init__(self, width: int, causal: bool, modern: bool = False) -> None:
        super().__init__()
        norm = nn.RMSNorm if modern else nn.LayerNorm
        self.ln1, self.ln2 = norm(width), norm(width)
        self.attn = Attention(width, causal=causal, qk_norm=modern)
        self.mlp = SwiGLU(width, 2 * width) if modern else MLP(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class PostNormBlock(nn.Module):
    """norm(x + attention(x)), norm(x + feed-forward(x))."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width, causal=causal), MLP(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln1(x + self.attn(x))
        return self.ln2(x + self.mlp(x))


@row(
    TEXT,
    each("h.{}: attn.qkv attn.proj", "h.{}: mlp.fc1 mlp.fc2"),
    "gpt2",
    96,
    24,
    2,
    name="GPT",
    heads="lm_head",
    stem="",
    roles="last: *.ln1 *.ln2; other: ln_f",
    odd="tied tables, small weights",
    loss=entropy,
    optimizer=adamw,
)
@row(
    TEXT,
    each("h.{}: attn.qkv attn.proj", "h.{}: mlp.gate mlp.up mlp.down"),
    "llama",
    96,
    24,
    2,
    name="LLaMA",
    heads="lm_head",
    stem="",
    odd="RMS norms, gated feed-forward layers, norms of queries and keys",
    loss=entropy,
    optimizer=adamw,
)
@row(
    TEXT,
    each("h.{}: attn.qkv attn.proj", "h.{}: mlp.fc1 mlp.fc2"),
    "post",
    96,
    24,
    2,
    name="PostNormGPT",
    heads="lm_head",
    stem="",
    roles="last: *.ln1 *.ln2",
    loss=entropy,
    optimizer=adamw,
)
class GPT(nn.Module):
    """nanoGPT's weights: σ = 0.02, at the ends of branches divided by √(2 · layers).

    `style` is `gpt2` (layer norms, tied weights), `llama` (RMS norms, normalized queries and keys, gated feed-forward
    layers, tied weights) or `post` (norms after the sums, logits with weights of their own).
    """

    def __init__(
        self, style: Literal["gpt2", "llama", "post"], vocabulary: int = 96, width: int = 24, layers: int = 3
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(16, width)
        kinds = {"gpt2": PreNormBlock, "llama": PreNormBlock, "post": PostNormBlock}
        options = {"modern": True} if style == "llama" else {}
        self.h = nn.ModuleList(kinds[style](width, True, **options) for _ in range(layers))
        self.ln_f = {"gpt2": nn.LayerNorm, "llama": nn.RMSNorm}[style](width) if style != "post" else nn.Identity()
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                end = name.endswith(("proj.weight", "fc2.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if end else 0.02)
        if style != "post":
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            h = block(h)
        return self.lm_head(self.ln_f(h))


@row(
    DIGITS,
    each("blocks.{}: attn.qkv attn.proj", "blocks.{}: mlp.fc1 mlp.fc2"),
    24,
    2,
    stem="patch",
    heads="head",
    roles="last: *.ln1 *.ln2; other: norm",
    odd="a class token",
    loss=entropy,
    optimizer=adamw,
)
class ViT(nn.Module):
    """Patches, a class token, pre-norm blocks."""

    def __init__(self, width: int = 24, layers: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.blocks = nn.Sequential(*(PreNormBlock(width, False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(len(h), -1, -1), h], 1) + self.pos
        return self.head(self.norm(self.blocks(h))[:, 0])


class MixerBlock(nn.Module):
    """Perceptrons over the patches and over the channels."""

    def __init__(self, width: int, patches: int) -> None:
        super().__init__()
        self.norm1, self.tokens = nn.LayerNorm(width), MLP(patches, 2 * patches)
        self.norm2, self.channels = nn.LayerNorm(width), MLP(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


@row(
    DIGITS,
    each("blocks.{}: tokens.fc1 tokens.fc2", "blocks.{}: channels.fc1 channels.fc2"),
    24,
    2,
    stem="patch",
    heads="head",
    roles="last: *.norm1 *.norm2; other: norm",
    odd="perceptrons over the patches",
    loss=entropy,
    optimizer=adamw,
)
class Mixer(nn.Module):
    """MLP-Mixer."""

    def __init__(self, width: int = 24, layers: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.blocks = nn.Sequential(*(MixerBlock(width, 16) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.patch(x).flatten(2).transpose(1, 2))).mean(1))


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, layer norm, perceptron over the channels, layer scale from 1e-6."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(width, width, 3, padding=1, groups=width), nn.LayerNorm(width, eps=1e-6)
        self.mlp = MLP(width, 3 * width)
        self.gamma = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.mlp(self.norm(self.dwconv(x).permute(0, 2, 3, 1)))
        return x + (self.gamma * h).permute(0, 3, 1, 2)


@row(
    DIGITS,
    each("blocks.{}: dwconv mlp.fc1 mlp.fc2"),
    16,
    2,
    name="ConvNeXt of small scales",
    stem="stem",
    heads="head",
    roles="last: blocks.*; other: norm",
    odd="layer scales of 1e-6",
    loss=entropy,
    optimizer=adamw,
)
class ConvNeXt(nn.Module):
    """A patch stem, one stage, a norm of the pooled features."""

    def __init__(self, width: int = 16, layers: int = 6, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 2, 2)
        self.blocks = nn.Sequential(*(ConvNeXtBlock(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(x)).mean((2, 3))))


class WaveNetLayer(nn.Module):
    """A gated causal convolution with batch norm; an output for the next layer, one for the sum of all."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.conv, self.norm = nn.Conv1d(width, 2 * width, 2, dilation=dilation), nn.BatchNorm1d(2 * width)
        self.res, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.norm(self.conv(F.pad(x, (self.dilation, 0)))).chunk(2, 1)
        h = torch.tanh(a) * torch.sigmoid(b)
        return x + self.res(h), self.skip(h)


@row(
    "randint(32, (4, 12))",
    each("layers.{}: conv res", count=6),
    odd="what each layer computes is summed for the output too; the last sum is not read",
    loss=entropy,
)
class WaveNet(nn.Module):
    """Predicts the level of the next sample from those before it."""

    def __init__(self, width: int = 12, levels: int = 32) -> None:
        super().__init__()
        self.enter = nn.Embedding(levels, width)
        self.layers = nn.ModuleList(WaveNetLayer(width, dilation) for dilation in (1, 2, 4) * 2)
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, levels, 1))

    def forward(self, samples: Tensor) -> Tensor:
        h = self.enter(samples).transpose(1, 2)
        total = torch.zeros_like(h)
        for layer in self.layers:
            h, skip = layer(h)
            total = total + skip
        return self.out(total).transpose(1, 2)


class ConvModule(nn.Module):
    """Conformer's convolutions: layer norm, gate, depthwise convolution, batch norm, SiLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.bn, self.outer = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.glu(self.inner(self.norm(x).transpose(1, 2)), dim=1)
        return self.outer(F.silu(self.bn(self.depthwise(h)))).transpose(1, 2)


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention, convolutions, half a feed-forward layer, norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ff1 = nn.Sequential(nn.LayerNorm(width), MLP(width, 2 * width))
        self.attn = nn.Sequential(nn.LayerNorm(width), Attention(width))
        self.conv = ConvModule(width)
        self.ff2 = nn.Sequential(nn.LayerNorm(width), MLP(width, 2 * width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.ff1(x)
        x = x + self.attn(x)
        x = x + self.conv(x)
        return self.norm(x + 0.5 * self.ff2(x))


@row(
    "randn(4, 8, 8)",
    each(
        "blocks.{}.ff1.1: fc1 fc2",
        "blocks.{}.attn.1: qkv proj",
        "blocks.{}.conv: inner depthwise outer",
        "blocks.{}.ff2.1: fc1 fc2",
    ),
    stem="enter",
    heads="out",
    odd="half steps; layer norms and a batch norm; a norm after the last sum",
    loss=entropy,
    optimizer=adamw,
)
class Conformer(nn.Module):
    """Names the tone of every frame."""

    def __init__(self, features: int = 8, width: int = 24, layers: int = 2, classes: int = 8) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.blocks = nn.Sequential(*(ConformerBlock(width) for _ in range(layers)))
        self.out = nn.Linear(width, classes)

    def forward(self, frames: Tensor) -> Tensor:
        return self.out(self.blocks(self.enter(frames)))


@row(
    "randn(4, 2, 12)",
    each("convs.{}: 0 1"),
    2,
    12,
    (1, 2),
    name="TCN of batch norms",
    stem="enter",
    heads="out",
    odd="dilated causal convolutions; the last step alone is read",
)
class TCN(nn.Module):
    """Dilated causal convolutions, batch norms, ReLU after the sum; reads the last step."""

    def __init__(self, features: int = 2, width: int = 12, dilations: tuple[int, ...] = (1, 2, 4, 1, 2, 4)) -> None:
        super().__init__()
        self.enter = nn.Conv1d(features, width, 1)
        self.convs = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(width, width, 3, dilation=dilation) for _ in range(2)) for dilation in dilations
        )
        self.norms = nn.ModuleList(nn.ModuleList(nn.BatchNorm1d(width) for _ in range(2)) for _ in dilations)
        self.dilations, self.out = dilations, nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for (first, second), (norm1, norm2), dilation in zip(self.convs, self.norms, self.dilations, strict=True):
            inner = F.relu(norm1(first(F.pad(h, (2 * dilation, 0)))))
            h = F.relu(h + norm2(second(F.pad(inner, (2 * dilation, 0)))))
        return self.out(h[:, :, -1])
