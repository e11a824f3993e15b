"""Norms that stay, that forward code reads, and norms at ends of branches of another width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.errors import UnsupportedEditError
from normless.models import resnet_cifar
from normless.models.spec import build_model
from normless.nn import Pointwise

WIDTH = 8


class PreNorm(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm, self.first, self.second = norm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.second(torch.relu(self.first(self.norm(x))))
        return y


class Language(nn.Module):
    """Tied embeddings, and a norm before the head."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(11, WIDTH), nn.Sequential(PreNorm(norm), PreNorm(norm))
        self.ln_f, self.head = norm(WIDTH), nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.ln_f(self.blocks(self.embed(tokens))))
        return logits


class TwoHeads(Language):
    """A norm for each of two heads."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm)
        self.ln_v, self.value = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, tokens: Tensor) -> Any:
        x = self.blocks(self.embed(tokens))
        return self.head(self.ln_f(x)), self.value(self.ln_v(x))


TOKENS = torch.arange(10).reshape(2, 5)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor, set[str]]] = {
    "layer norm": (lambda: Language(nn.LayerNorm), TOKENS, {"ln_f"}),
    "root mean square": (lambda: Language(nn.RMSNorm), TOKENS, {"ln_f"}),
    "two heads": (TwoHeads, TOKENS, {"ln_f", "ln_v"}),
    "ViT": (lambda: build_model("timm:test_vit"), torch.randn(2, 3, 160, 160), {"norm"}),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("scheme", ["dyt(final=keep)", "derf(final=keep)", "dyt(final=keep, alpha=0.2)"])
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
        nl.convert(Language(nn.LayerNorm), "dyt(final=leave)", TOKENS)


class ReadsParameters(nn.Module):
    """Forward code that takes its dtype from norms, as state space models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.inner = nn.Module()
        self.inner.norm = nn.LayerNorm(4)
        self.layer, self.norm2, self.out = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.layer(self.inner.norm(x.to(self.inner.norm.weight.dtype)).relu())
        return self.out(self.norm2(x)) * self.inner.norm.bias.new_ones(2)


def test_forward_code_may_read_the_parameters_of_a_removed_norm() -> None:
    model = ReadsParameters()
    nn.init.normal_(model.inner.norm.weight)
    x = torch.randn(3, 4)
    net = nl.convert(model, "skipinit(alpha=1)", x)
    h = model.embed(x)
    torch.testing.assert_close(net(x), model.out(h + model.layer(h.relu())))
    assert isinstance(net.inner.norm, nn.Identity)
    assert torch.equal(net.inner.norm.weight, torch.ones(4))
    assert torch.equal(net.inner.norm.bias, torch.zeros(4))
    assert not any("norm" in name for name in net.state_dict())
    assert not list(net.norm2.buffers()), "nothing reads its parameters"
    assert net.double()(x.double()).dtype == torch.float64


class Block(nn.Module):
    """skip(x) + conv(relu(conv(norm(x)))) of another width, at the same or twice the size."""

    def __init__(self, norm: nn.Module, inputs: int, outputs: int, *, up: bool = False) -> None:
        super().__init__()
        self.norm, self.first = norm, nn.Conv2d(inputs, outputs, 3, padding=1)
        larger = nn.ConvTranspose2d(outputs, outputs, 4, 2, 1, groups=2)
        self.last = larger if up else nn.Conv2d(outputs, outputs, 3, padding=1)
        projection = nn.Conv2d(inputs, outputs, 1)
        self.skip = nn.Sequential(nn.Upsample(scale_factor=2), projection) if up else projection

    def branch(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.relu(self.first(self.norm(x))))
        return y

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.skip(x) + self.branch(x)
        return y


class Tokens(nn.Module):
    """Linear layers to twice the width around a norm of the last axis."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.first, self.last, self.skip = norm, nn.Linear(8, 12), nn.Linear(12, 16), nn.Linear(8, 16)

    branch = Block.branch
    forward = Block.forward


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "group norm": (lambda: Block(nn.GroupNorm(4, 8), 8, 16), (3, 8, 4, 4), lambda y: F.group_norm(y, 4)),
    "fewer groups": (lambda: Block(nn.GroupNorm(4, 8), 8, 10), (3, 8, 4, 4), lambda y: F.group_norm(y, 2)),
    "instance norm": (lambda: Block(nn.InstanceNorm2d(8, affine=True), 8, 6), (3, 8, 4, 4), F.instance_norm),
    "batch norm, larger": (
        lambda: Block(nn.BatchNorm2d(8), 8, 4, up=True),
        (3, 8, 4, 4),
        lambda y: F.batch_norm(y, None, None, training=True),
    ),
    "group norm, larger": (
        lambda: Block(nn.GroupNorm(2, 8), 8, 4, up=True),
        (3, 8, 4, 4),
        lambda y: F.group_norm(y, 2),
    ),
    "layer norm": (lambda: Tokens(nn.LayerNorm(8)), (3, 5, 8), lambda y: F.layer_norm(y, (16,))),
    "rms norm": (lambda: Tokens(nn.RMSNorm(8)), (3, 5, 8), lambda y: F.rms_norm(y, (16,))),
}


def case(name: str) -> tuple[nn.Sequential, Tensor, Callable[[Tensor], Tensor]]:
    torch.manual_seed(0)
    block, shape, normalized = CASES[name]
    return nn.Sequential(nn.Identity(), block()).train(), torch.randn(shape), normalized


@pytest.mark.parametrize("name", CASES)
def test_peri_norm_has_the_width_of_the_branchs_end(name: str) -> None:
    model, x, normalized = case(name)
    net = nl.convert(model, "peri_norm(gamma=0.5)", x)
    expected = model[1].skip(x) + 0.5 * normalized(model[1].branch(x))
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_layer_scale_has_one_factor_for_each_output(name: str) -> None:
    model, x, _ = case(name)
    net = nl.convert(model, "layer_scale(init=0.5)", x)
    torch.testing.assert_close(net(x), model[1].skip(x) + 0.5 * model[1].branch(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", ["only_top_norm", "norm_on_skip"])
def test_batch_norms_after_transposed_convolutions(scheme: str) -> None:
    model, x, _ = case("batch norm, larger")
    net = nl.convert(model, scheme, x)
    assert 4 in {one.num_features for one in net.modules() if isinstance(one, nn.BatchNorm2d)}
    assert net(x).isfinite().all()


def test_norms_over_whole_images_are_copied_where_the_shape_stays_and_refused_elsewhere() -> None:
    class Same(Block):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.branch(x)

    torch.manual_seed(0)
    x = torch.randn(3, 8, 4, 4)
    same = nn.Sequential(nn.Identity(), Same(nn.LayerNorm([8, 4, 4]), 8, 8))
    expected = x + F.layer_norm(same[1].branch(x), (8, 4, 4))
    torch.testing.assert_close(nl.convert(same, "peri_norm", x)(x), expected, rtol=1e-4, atol=1e-5)
    wider = nn.Sequential(nn.Identity(), Block(nn.LayerNorm([8, 4, 4]), 8, 16))
    with pytest.raises(UnsupportedEditError, match=r"1\.norm.*\(8, 4, 4\).*16 channels"):
        nl.convert(wider, "peri_norm", x)
