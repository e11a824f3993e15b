"""Norms that cannot be converted, folded or removed; schemes that lose what a trained network computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl
from errors.edits import CIFAR, IMAGES, ROWS, Forward, converted, normed, written
from errors.wrong import Wrong
from normless.models import resnet_cifar, wide_resnet

Unsupported, Unresolved = nl.errors.UnsupportedEditError, nl.errors.UnresolvedStructureError


class NoisyBatchNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + 0.1 * torch.randn_like(y) if self.training else y


class Skipping(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


class Evolved(nn.BatchNorm2d):
    """EvoNorm's kind: a norm that is its own nonlinearity."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.v = nn.Parameter(torch.ones(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.v * x) / x.std(0, keepdim=True) * self.weight[:, None, None]


class NeedsMask(nn.LayerNorm):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x.movedim(1, -1)).movedim(-1, 1) * mask


class Bent(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sin())


def masked(norm: nn.Module) -> nn.Module:
    parts = {"conv": nn.Conv2d(3, 8, 3), "norm": norm, "head": nn.Conv2d(8, 2, 1)}
    return Written(lambda m, x: m.head(torch.relu(m.norm(h := m.conv(x), (h > -1).float()))), **parts)


def not_a_number(name: str) -> nn.Module:
    norm = nn.BatchNorm2d(8)
    getattr(norm, name).data[3] = torch.nan
    return normed(norm)


def pooled(width: int) -> nn.Module:
    layers = (nn.Conv2d(3, width, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(width, 2))


def wider() -> nn.Module:
    """A block of a norm over whole images that ends in twice as many channels."""
    parts = {"norm": nn.LayerNorm([8, 4, 4]), "last": nn.Conv2d(8, 16, 3, padding=1), "skip": nn.Conv2d(8, 16, 1)}
    return nn.Sequential(nn.Identity(), Written(lambda m, x: m.skip(x) + m.last(m.norm(x)), **parts))


def unit(x: Tensor, gain: Tensor) -> Tensor:
    return F.normalize(x, dim=-1) * gain


def by_function(forward: Forward) -> nn.Module:
    """A block whose norm is a function of other code."""
    gain = nn.Parameter(torch.rand(8))
    made = written(lambda m, x: x + m.g(F.relu(m.f(forward(m, x)))), "f g", gain=gain)
    return nn.Sequential(nn.Linear(8, 8), made, nn.Linear(8, 3))


def hooked(*layers: nn.Module) -> nn.Module:
    """Layers, the last of which carries a hook, and one after them."""
    layers[-1].register_forward_hook(lambda *_: None)
    return nn.Sequential(*layers, nn.Linear(8, 8))


def by_the_batch(m: Any, x: Tensor) -> Any:
    return m.head(F.batch_norm(m.norm(m.conv(x)), None, None, training=True))


WITHOUT_FINAL = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
PARTS = {"conv": nn.Conv2d(3, 4, 3), "norm": nn.BatchNorm2d(4), "head": nn.Conv2d(4, 2, 1)}
FUNCTIONAL, GROUPS = Written(by_the_batch, **PARTS), "group_norm(groups=2)"
CONVERTED: list[tuple[Any, ...]] = [
    (normed(NoisyBatchNorm(8)), IMAGES, "none", "at 1, a NoisyBatchNorm"),
    (normed(Skipping(8)), IMAGES, "dyt", "at 1, a Skipping"),
    (normed(Evolved(8)), IMAGES, "none", "at 1, an Evolved: an Evolved", "1.v"),
    (masked(NeedsMask(8)), IMAGES, "dyt", "norm"),
    (by_function(lambda m, x: unit(gain=m.gain, x=x)), ROWS, "none", "at gain in the forward code of 1", "function"),
    (FUNCTIONAL, IMAGES, GROUPS, "at batch_norm in the forward code of this Written"),
    (pooled(1), IMAGES, "group_norm", "at 2, a BatchNorm2d", "has 1 value there"),
    (CIFAR, IMAGES, "split_batch_norm(parts=1)", "parts=1"),
    (CIFAR, IMAGES, "dyt(attention_alpha=0.8)", "it has no normalization that an attention reads"),
    (CIFAR, IMAGES, "dyt(final=keep)", "follows its last block"),
    (WITHOUT_FINAL, IMAGES, "dyt(final=keep)", "block"),
    (wider(), torch.randn(3, 8, 4, 4), "peri_norm", "1.norm", "(8, 4, 4)", "16 channels"),
]  # fmt: skip
UNTRACKED, PLAIN = nn.BatchNorm2d(8, track_running_stats=False), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
ONE_NORM, BENT = (nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 8)) for norm in (nn.LayerNorm(8), Bent(8)))
BY_BATCH = Written(lambda m, x: F.batch_norm(m.conv(x), None, None, training=True), conv=nn.Conv2d(3, 4, 3))
CALLS: list[tuple[Callable[[], object], type[Exception], tuple[str, ...]]] = [
    (partial(nl.freeze, not_a_number("running_mean")), Unsupported, ("of 1, ", "not finite")),
    (partial(nl.convert, not_a_number("weight"), "none", IMAGES), Unsupported, ("of 1, ", "not finite")),
    (partial(nl.fold, normed(UNTRACKED), IMAGES), Unsupported, ("1 is a BatchNorm2d without running statistics",)),
    (partial(nl.fold, WITHOUT_FINAL), Unresolved, ("Sequential", "pass example inputs")),
    (partial(nl.fold, BY_BATCH, IMAGES), Unsupported, ("normalizes by the statistics",)),
    (partial(nl.freeze, normed(Skipping(8))), Unsupported, ("1 is a Skipping, which does more", "add")),
    (partial(nl.fuse_for_inference, wide_resnet(10, 1).eval(), IMAGES), Unsupported,
     ("blocks.0.norm1 is a FrozenAffine", "allow_partial=True")),
    (partial(nl.remove_norms, PLAIN), Unresolved, ("pass example inputs",)),
    (partial(nl.remove_norms, PLAIN, ROWS), Unsupported, ("no layer, RMS or group norm",)),
    (partial(nl.remove_norms, normed(nn.InstanceNorm2d(8, track_running_stats=True)), IMAGES), Unsupported,
     ("remove_norms", "at 1, an InstanceNorm2d: it is an instance norm with running statistics")),
    (partial(nl.remove_norms, written(lambda m, x: m.g(F.layer_norm(m.f(x), (8,)))), ROWS), Unsupported,
     ("layer_norm is a function in forward code; make it a module",)),
    (partial(nl.remove_norms, hooked(nn.Linear(8, 8), nn.LayerNorm(8), nn.LayerNorm(8)), ROWS), Unsupported,
     ("at 2, a LayerNorm: it carries hooks",)),
    (partial(nl.remove_norms, BENT, ROWS), Unsupported, ("remove_norms is not possible at 1, a Bent",)),
    (partial(nl.remove_norms, ONE_NORM, ROWS, order=("final",)), Unsupported, ("order=('final',)", "as 1 (other)")),
    (partial(nl.remove_norms, PLAIN, ROWS, order=("top",)), ValueError, ("places among feed_forward, attention",)),  # type: ignore[arg-type]
    (partial(nl.remove_norms, nn.DataParallel(PLAIN), ROWS), Unsupported, ("DistributedDataParallel",)),
    (partial(nl.convert_trained, normed(nn.GroupNorm(2, 8)), "none", IMAGES), Unsupported,
     ("convert_trained by none is not possible at 1, a GroupNorm", "nl.remove")),
    (partial(nl.convert_trained, CIFAR, "none", []), ValueError, ("got none",)),
    (partial(nl.convert_trained, resnet_cifar(8).eval(), GROUPS, IMAGES * torch.inf), Unsupported,
     ("convert_trained by group_norm(groups=2)", "not finite")),
]  # fmt: skip
CLOSED = "multiplier of every branch at zero"
LOST = {
    "fixup": "last layer of every branch to zero", "zeroinit": CLOSED, "skipinit(alpha=0)": CLOSED,
    "sqrt2": "residual sum by 0.7071", "xavier": "draws new weights",
    "group_norm + ZeroClassifier()": "classifier to zero",
}  # fmt: skip
ERRORS = [
    *(converted(*row) for row in CONVERTED),
    *(Wrong(f"{at}: {words[0]}", call, error, *words) for at, (call, error, words) in enumerate(CALLS)),
    *(Wrong(f"trained by {scheme}", partial(nl.convert_trained, CIFAR, scheme, IMAGES), Unsupported,
            words, "nl.fold", "nl.remove_norms", "skipinit") for scheme, words in LOST.items()),
]  # fmt: skip
