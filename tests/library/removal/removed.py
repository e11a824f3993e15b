"""Small networks with norms, the loop that takes them out, and what is folded afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl

TOKENS = torch.arange(40).reshape(4, 10) * 7 % 20
QUICK: dict[str, Any] = {"start": 2, "interval": 2, "tolerance": 100.0}
Loss = Callable[[Any], Tensor]


class Block(nn.Module):
    """Attention and feed-forward, pre-norm or post-norm, optionally with norms of queries and keys."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module], post: bool = False, qk: bool = False) -> None:
        super().__init__()
        self.post, self.ln_1, self.ln_2 = post, norm(width), norm(width)
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width) for _ in range(4))
        self.fc, self.out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.q_norm, self.k_norm = (norm(width // 2), norm(width // 2)) if qk else (nn.Identity(), nn.Identity())

    def attend(self, x: Tensor) -> Any:
        q, k, v = (layer(x).unflatten(-1, (2, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Any:
        if self.post:
            x = self.ln_1(x + self.attend(x))
            return self.ln_2(x + self.out(F.gelu(self.fc(x))))
        x = x + self.attend(self.ln_1(x))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))


class LanguageModel(nn.Module):
    """Two blocks on embedded tokens, and a final norm unless they are post-norm."""

    def __init__(
        self,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        post: bool = False,
        qk: bool = False,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(20, 8), nn.Parameter(torch.randn(32, 8) / 10)
        self.blocks = nn.Sequential(*(Block(8, norm, post, qk) for _ in range(2)))
        self.ln_f = nn.Identity() if post else norm(8)
        self.head = nn.Linear(8, 20, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Any:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.ln_f(self.blocks(x)))


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def with_random_affines(net: nn.Module) -> Any:
    """Give γ and β values of their own."""
    for module in net.modules():
        if "Norm" in type(module).__name__:
            for parameter in module.parameters(recurse=False):
                nn.init.normal_(parameter, mean=1.0, std=0.5)
    return net


def next_token(net: nn.Module, tokens: Tensor = TOKENS) -> Tensor:
    """The loss of a language model."""
    return F.cross_entropy(net(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train(
    net: nn.Module,
    removal: nl.affine.Removal,
    loss: Loss = next_token,
    optimizer: torch.optim.Optimizer | None = None,
    steps: Iterable[int] = range(200),
) -> int:
    """Train until the removal is done, or for some steps; return the number of steps."""
    net.train()
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=1e-3)
    done = 0
    for _ in steps:
        optimizer.zero_grad()
        removal.loss(loss(net)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        removal.step()
        done += 1
        if removal.done:
            break
    return done


def relative(made: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest value."""
    return float(((made - expected).abs().max() / expected.abs().max()).detach())


def folded(
    net: nn.Module, *inputs: Tensor, loss: Loss | None = None
) -> tuple[Any, nl.affine.FoldReport, nl.affine.Removal]:
    """The network folded after all of its norms were removed; its outputs are the same."""
    removal = nl.remove_norms(net, *inputs, **QUICK)
    train(net, removal, loss or (lambda net: net(*inputs).square().mean()))
    made, report = nl.fold(removal.finish().eval(), *inputs)
    with torch.no_grad():
        assert relative(made(*inputs), net.eval()(*inputs)) < 1e-5
    return made, report, removal


def one_step(net: nn.Module, *inputs: Any, **options: Any) -> nl.affine.Removal:
    """A removal after one step of measuring."""
    removal = nl.remove_norms(net, *inputs, **QUICK, **options)
    removal.loss(net.train()(*inputs).sum())
    removal.step()
    return removal
