"""Networks in the styles of several kinds of code: checkpoints, dropped paths, attention by einsum, boards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


class OwnCheckpoint(torch.autograd.Function):
    """As guided-diffusion writes it."""

    @staticmethod
    def forward(ctx: Any, run: Any, length: int, *args: Tensor) -> Any:  # type: ignore[override]
        ctx.run, ctx.inputs, ctx.weights = run, list(args[:length]), list(args[length:])
        with torch.no_grad():
            return ctx.run(*ctx.inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # type: ignore[override]
        inputs = [one.detach().requires_grad_(True) for one in ctx.inputs]
        with torch.enable_grad():
            outputs = ctx.run(*[one.view_as(one) for one in inputs])
        return None, None, *torch.autograd.grad(outputs, inputs + ctx.weights, gradients, allow_unused=True)


class TimedBlock(nn.Module):
    """A residual block with scale and shift by an embedding of the time, checkpointed."""

    def __init__(self, inputs: int = WIDTH) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(nn.GroupNorm(2, inputs), nn.SiLU(), conv(inputs))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(16, 2 * WIDTH))
        self.out_layers = nn.Sequential(nn.GroupNorm(2, WIDTH), nn.SiLU(), nn.Dropout(0.1), conv())
        self.skip_connection = nn.Identity() if inputs == WIDTH else conv(inputs, WIDTH, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y: Tensor = OwnCheckpoint.apply(self._forward, 2, x, time, *self.parameters())  # type: ignore[no-untyped-call]
        return y

    def _forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.in_layers(x)
        norm, rest = self.out_layers[0], self.out_layers[1:]
        scale, shift = self.emb_layers(time)[..., None, None].chunk(2, 1)
        h = norm(h) * (1 + scale) + shift
        y: Tensor = self.skip_connection(x) + rest(h)
        return y


class DiffusionUNet(nn.Module):
    """Down, middle and up, with one long skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.time_embed = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 16))
        self.stem, self.down, self.middle, self.up = conv(3), TimedBlock(), TimedBlock(), TimedBlock(2 * WIDTH)
        self.out = nn.Sequential(nn.GroupNorm(2, WIDTH), nn.SiLU(), conv(WIDTH, 3))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None].float() * torch.exp(-torch.arange(2.0))
        emb = self.time_embed(torch.cat([angles.cos(), angles.sin()], 1))
        h = self.down(self.stem(x), emb)
        inner = F.interpolate(self.middle(F.avg_pool2d(h, 2), emb), scale_factor=2.0)
        y: Tensor = self.out(self.up(torch.cat([inner, h], 1), emb))
        return y


class Branch(nn.Module):
    """norm(conv(relu(norm(conv(x)))))."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(), conv()
        self.norm1, self.norm2 = nn.BatchNorm2d(WIDTH), nn.BatchNorm2d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return y


def drop_path(x: Tensor, rate: float, training: bool) -> Tensor:
    """As timm's function."""
    if rate == 0.0 or not training:
        return x
    keep = 1 - rate
    mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
    if keep > 0.0:
        mask.div_(keep)
    return x * mask


class DropsByMask(nn.Module):
    """A random mask on the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.f = Branch()

    def forward(self, x: Tensor) -> Tensor:
        return x + drop_path(self.f(x), 0.2, self.training)


class DropsByFloor(nn.Module):
    """The mask of the first implementation: floor(keep + u), on the branch divided by keep."""

    def __init__(self) -> None:
        super().__init__()
        self.f = Branch()

    def forward(self, x: Tensor) -> Tensor:
        y = self.f(x)
        if self.training:
            y = y.div(0.8) * torch.floor(0.8 + torch.rand(len(y), 1, 1, 1))
        return x + y


class DropsByBranching(nn.Module):
    """The block is skipped as a whole; in evaluation its branch counts by its probability (Huang et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.f = Branch()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return x + self.f(x) if torch.rand(()) < 0.8 else x
        return x + 0.8 * self.f(x)


class Classifier(nn.Module):
    """A stem, two blocks, a head."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = conv(3), nn.Sequential(block(), block()), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return logits


class PoolingBlock(nn.Module):
    """A pre-activation block with global pooling that biases its first convolution, as in KataGo."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(WIDTH), nn.BatchNorm2d(WIDTH)
        self.conv1r, self.conv1g, self.conv2 = conv(), conv(), conv()
        self.linear = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out = F.relu(self.norm1(x)) * mask
        pooled = F.relu(self.conv1g(out))
        pooled = torch.cat([pooled.mean((2, 3)), pooled.amax((2, 3))], 1)
        out = self.conv1r(out) + self.linear(pooled)[:, :, None, None]
        return x + self.conv2(F.relu(self.norm2(out)) * mask)


class Board(nn.Module):
    """A trunk under autocast with policy and value heads in full precision."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = conv(3), nn.ModuleList([PoolingBlock(), PoolingBlock()])
        self.norm, self.policy, self.value = nn.BatchNorm2d(WIDTH), conv(WIDTH, 1), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = (x[:, :1] > -9).float()
        with torch.autocast("cpu", torch.bfloat16):
            h = self.stem(x) * mask
            for block in self.blocks:
                h = block(h, mask)
            h = F.relu(self.norm(h)) * mask
        h = h.float()
        return self.policy(h).flatten(1), self.value(h.mean((2, 3)))


class Reversible(nn.Module):
    """y₁ = x₁ + f(x₂), y₂ = x₂ + g(y₁) (Gomez et al. 2017), in blocks of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = conv(3, 2 * WIDTH), nn.Linear(2 * WIDTH, 5)
        self.f, self.g = (nn.ModuleList([Branch(), Branch()]) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = torch.chunk(self.stem(x), 2, dim=1)
        for f, g in zip(self.f, self.g, strict=True):
            x1 = x1 + f(x2)
            x2 = x2 + g(x1)
        logits: Tensor = self.head(torch.cat([x1, x2], 1).mean((2, 3)))
        return logits
