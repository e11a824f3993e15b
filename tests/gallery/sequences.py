"""Networks of tokens and patches, a few channels wide, written as their packages write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery.row import each, row

D, HEADS = 16, 2


class Attention(nn.Module):
    """Attention with a layer each for queries, keys, values and output; biases of the logits are given."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.causal = causal

    def forward(self, x: Tensor, context: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q, k, v = (
            one.view(len(one), -1, HEADS, D // HEADS).transpose(1, 2)
            for one in (self.q(x), self.k(source), self.v(source))
        )
        logits = q @ k.transpose(2, 3) / (D // HEADS) ** 0.5
        if bias is not None:
            logits = logits + bias
        if self.causal:
            future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            logits = logits.masked_fill(future, float("-inf"))
        out = logits.softmax(-1) @ v
        return self.o(out.transpose(1, 2).reshape(x.shape))


def mlp(act: type[nn.Module] = nn.GELU, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, 32), act(), nn.Dropout(dropout), nn.Linear(32, D), nn.Dropout(dropout))


class Patches(nn.Module):
    """Patches of an image, a class token, positions, blocks, a head."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Conv2d(3, D, 4, 4), nn.ModuleList(blocks)
        self.token, self.position = nn.Parameter(torch.zeros(1, 1, D)), nn.Parameter(torch.randn(1, 17, D))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class ParallelBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(D) for _ in range(3)])
        self.attns, self.mlp = nn.ModuleList([Attention(), Attention()]), mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.attns[0](self.norms[0](x)) + self.attns[1](self.norms[1](x)) + self.mlp(self.norms[2](x)) + x


@row(
    "randn(2, 3, 16, 16)",
    [
        f"blocks.{b}: attns.0.q attns.0.k attns.0.v attns.0.o + attns.1.q attns.1.k attns.1.v attns.1.o + mlp.0 mlp.3"
        for b in range(2)
    ],
    stem="embed",
)
class ParallelViT(Patches):
    def __init__(self) -> None:
        super().__init__(ParallelBlock(), ParallelBlock())


class WindowBlock(nn.Module):
    """Attention in windows of 2×2 tokens with relative biases, every second time of a shifted image."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.norm1, self.qkv, self.proj = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.norm2, self.mlp, self.shift = nn.LayerNorm(D), mlp(), shift
        self.table = nn.Parameter(torch.randn(9, HEADS))
        y, x = torch.arange(4) // 2, torch.arange(4) % 2
        self.register_buffer("index", 3 * (y[:, None] - y + 1) + x[:, None] - x + 1)

    def forward(self, x: Tensor) -> Tensor:
        shape = (len(x), 2, 2, 2, 2, D)
        h = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2))
        h = h.view(shape).transpose(2, 3).reshape(-1, 4, D)
        q, k, v = self.qkv(h).view(-1, 4, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(4, 4, HEADS).permute(2, 0, 1)
        h = ((q @ k.transpose(2, 3) + bias).softmax(-1) @ v).transpose(1, 2).reshape(-1, 4, D)
        h = self.proj(h).view(shape).transpose(2, 3).reshape(x.shape)
        x = x + torch.roll(h, (self.shift, self.shift), (1, 2))
        return x + self.mlp(self.norm2(x))


@row(
    "randn(2, 3, 16, 16)",
    each("blocks.{}: qkv proj", "blocks.{}.mlp: 0 3"),
    stem="embed",
)
class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Conv2d(3, D, 4, 4), nn.Sequential(WindowBlock(0), WindowBlock(1))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.embed(x).permute(0, 2, 3, 1))
        return self.head(self.norm(x).mean((1, 2)))


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class GatedBlock(nn.Module):
    """T5's: RMS norms, a relative bias, a gated feed-forward network; cross-attention in a decoder."""

    def __init__(self, cross: bool) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm3 = RMSNorm(), Attention(causal=cross), RMSNorm()
        self.wi_0, self.wi_1, self.wo = (nn.Linear(*one, bias=False) for one in ((D, 32), (D, 32), (32, D)))
        self.norm2, self.cross = (RMSNorm(), Attention()) if cross else (None, None)

    def forward(self, x: Tensor, bias: Tensor, context: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), bias=bias)
        if self.cross is not None and self.norm2 is not None:
            x = x + self.cross(self.norm2(x), context)
        h = self.norm3(x)
        return x + self.wo(F.gelu(self.wi_0(h)) * self.wi_1(h))


@row(
    "(randint(20, (2, 8)), randint(20, (2, 6)))",
    [
        *each("encoder.{}.attn: q k v o", "encoder.{}: wi_0 wi_1 wo"),
        *each("decoder.{}.attn: q k v o", "decoder.{}.cross: q k v o", "decoder.{}: wi_0 wi_1 wo"),
    ],
    stem="",
)
class T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.biases = nn.Embedding(20, D), nn.Embedding(15, HEADS)
        self.encoder = nn.ModuleList([GatedBlock(False), GatedBlock(False)])
        self.decoder = nn.ModuleList([GatedBlock(True), GatedBlock(True)])
        self.norm, self.final, self.head = RMSNorm(), RMSNorm(), nn.Linear(D, 20, bias=False)

    def bias(self, length: int) -> Tensor:
        places = torch.arange(length)
        return self.biases(places[None] - places[:, None] + 7).permute(2, 0, 1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x, y = self.shared(source), self.shared(target)
        for block in self.encoder:
            x = block(x, self.bias(x.shape[1]))
        x = self.norm(x)
        for block in self.decoder:
            y = block(y, self.bias(y.shape[1]), x)
        return self.head(self.final(y))


class PostNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.norm1, self.mlp, self.norm2 = Attention(), nn.LayerNorm(D), mlp(dropout=0.1), nn.LayerNorm(D)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.norm1(self.attn(x, bias=bias) + x)
        return self.norm2(self.mlp(x) + x)


@row("(randint(20, (2, 8)), ones(2, 8))", each("layers.{}.attn: q k v o", "layers.{}.mlp: 0 3"), stem="")
class BERT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(20, D), nn.Embedding(8, D), nn.Embedding(2, D)
        self.norm, self.layers = nn.LayerNorm(D), nn.ModuleList([PostNorm(), PostNorm()])
        self.pooler, self.classifier = nn.Linear(D, D), nn.Linear(D, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        places = self.places(torch.arange(tokens.shape[1]))
        x = self.norm(self.words(tokens) + places + self.kinds(torch.zeros_like(tokens)))
        for layer in self.layers:
            x = layer(x, (1 - mask[:, None, None]) * -1e4)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


@row(
    "(randn(2, 7, 16), randn(2, 5, 16))",
    [
        *each("net.encoder.layers.{}: self_attn self_attn.out_proj", "net.encoder.layers.{}: linear1 linear2"),
        *each(
            "net.decoder.layers.{}: self_attn self_attn.out_proj",
            "net.decoder.layers.{}: multihead_attn multihead_attn.out_proj",
            "net.decoder.layers.{}: linear1 linear2",
        ),
    ],
    stem="",
)
class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(D, HEADS, 2, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(D, 9)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.net(source, target, tgt_mask=mask, tgt_is_causal=True))
