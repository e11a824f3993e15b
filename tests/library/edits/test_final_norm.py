"""`dyt(final=keep)` leaves the normalizations after the last block, and those alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from written_networks import Written

import normless as nl
from normless.models import resnet_cifar
from normless.models.spec import build_model
from normless.nn import Pointwise

WIDTH = 8


def pre_norm(norm: Callable[[int], nn.Module]) -> nn.Module:
    return Written(
        lambda m, x: x + m.second(torch.relu(m.first(m.norm(x)))),
        norm=norm(WIDTH), first=nn.Linear(WIDTH, 16), second=nn.Linear(16, WIDTH),
    )  # fmt: skip


def language(norm: Callable[[int], nn.Module], *, two_heads: bool = False) -> nn.Module:
    """Tied embeddings, and a norm before the head, or one for each of two."""

    def forward(m: Written, tokens: Tensor) -> Any:
        x = m.blocks(m.embed(tokens))
        return (m.head(m.ln_f(x)), m.value(m.ln_v(x))) if two_heads else m.head(m.ln_f(x))

    blocks, head = nn.Sequential(pre_norm(norm), pre_norm(norm)), nn.Linear(WIDTH, 11, bias=False)
    embed, value = nn.Embedding(11, WIDTH), {"ln_v": norm(WIDTH), "value": nn.Linear(WIDTH, 1)} if two_heads else {}
    head.weight = embed.weight
    return Written(forward, embed=embed, blocks=blocks, ln_f=norm(WIDTH), head=head, **value)


TOKENS = torch.arange(10).reshape(2, 5)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor, set[str]]] = {
    "layer norm": (lambda: language(nn.LayerNorm), TOKENS, {"ln_f"}),
    "root mean square": (lambda: language(nn.RMSNorm), TOKENS, {"ln_f"}),
    "two heads": (lambda: language(nn.LayerNorm, two_heads=True), TOKENS, {"ln_f", "ln_v"}),
    "ViT": (lambda: build_model("timm:test_vit(img_size=32)"), torch.randn(2, 3, 32, 32), {"norm"}),
}


@pytest.mark.parametrize(
    ("name", "scheme"),
    [*((name, "dyt(final=keep)") for name in NETWORKS), ("two heads", "derf(final=keep, alpha=0.2)")],
)
def test_the_norms_after_the_last_block_stay_with_their_weights(name: str, scheme: str) -> None:
    make, x, kept = NETWORKS[name]
    model = make().eval()
    before = {path for path, one in model.named_modules() if "Norm" in type(one).__name__ and one.training is False}
    net = nl.convert(model, scheme, x)
    for path in kept:
        assert type(net.get_submodule(path)) is type(model.get_submodule(path))
    replaced = {path for path, one in net.named_modules() if isinstance(one, Pointwise)}
    assert replaced
    assert replaced.isdisjoint(kept)
    norms = {path for path in before if path in nl.residual_map(model, x).norms}
    assert norms == replaced | kept
    kept_in_plan = {one.path for one in nl.plan(model, scheme, x) if "kept" in str(one)}
    assert kept_in_plan == kept


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: resnet_cifar(8), "follows its last block"),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)), "block"),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)), "no normalization"),
    ],
)
def test_without_one_there_is_nothing_to_keep(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(nl.UnsupportedEditError, match=words):
        nl.convert(make(), "dyt(final=keep)", torch.randn(4, 3, 32, 32))


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="replace, keep"):
        nl.convert(language(nn.LayerNorm), "dyt(final=leave)", TOKENS)
