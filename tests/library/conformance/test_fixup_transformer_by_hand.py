"""The transformer converted by Fixup and SkipInit against those written by hand, every scalar elementwise."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import transformer

VOCABULARY, WIDTH, HEADS, HIDDEN = 17, 12, 2, 20


def scalar(value: float = 0.0) -> nn.Parameter:
    return nn.Parameter(torch.tensor([value]))


class FixupAttention(nn.Module):
    """x + α·(W_o (softmax(q kᵀ/√d) v + b₄) + β) with a bias before each of the projections."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)
        self.b1, self.b2, self.b3, self.b4, self.scale = scalar(), scalar(), scalar(), scalar(), scalar(1.0)

    def forward(self, x: Tensor, memory: Tensor, allowed: Tensor) -> Tensor:
        q, k, v = self.q(x + self.b1), self.k(memory + self.b2), self.v(memory + self.b3)
        size = WIDTH // HEADS
        found = []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = q[..., part] @ k[..., part].mT / math.sqrt(size)
            found.append(scores.masked_fill(~allowed, -math.inf).softmax(-1) @ v[..., part])
        return x + self.scale * self.o(torch.cat(found, -1) + self.b4)


class FixupFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.b1, self.b2, self.b3, self.scale = scalar(), scalar(), scalar(), scalar(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.two(F.relu(self.one(x + self.b1) + self.b2) + self.b3)


class FixupTransformer(nn.Module):
    def __init__(self, layers: int, decoder_layers: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(VOCABULARY, WIDTH))
        self.encoder = nn.ModuleList(nn.ModuleList([FixupAttention(), FixupFeedForward()]) for _ in range(layers))
        self.decoder = nn.ModuleList(
            nn.ModuleList([FixupAttention(), FixupAttention(), FixupFeedForward()]) for _ in range(decoder_layers)
        )
        self.b = scalar()

    def embed(self, tokens: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1]).double()[:, None]
        rates = 10000 ** (-torch.arange(0, WIDTH, 2).double() / WIDTH)
        x = self.table[tokens] * math.sqrt(WIDTH)
        x[..., 0::2] = x[..., 0::2] + (place * rates).sin()
        x[..., 1::2] = x[..., 1::2] + (place * rates).cos()
        return x

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, read = self.embed(source), (source != 0)[:, None]
        for attention, feed_forward in self.encoder:
            memory = feed_forward(attention(memory, memory, read))
        h = self.embed(target)
        earlier = torch.ones(target.shape[1], target.shape[1]).tril() > 0
        for own, cross, feed_forward in self.decoder:
            h = feed_forward(cross(own(h, h, earlier), memory, read))
        return (h + self.b) @ self.table.T


ATTENTION = {
    "q": "attention.query",
    "k": "attention.key",
    "v": "attention.value",
    "o": "attention.output",
    "b1": "attention.query.input_bias",
    "b2": "attention.key.input_bias",
    "b3": "attention.value.input_bias",
    "b4": "attention.output.input_bias",
    "scale": "attention.output.multiplier",
}
FEED_FORWARD = {
    "one": "linear1",
    "two": "linear2",
    "b1": "linear1.input_bias",
    "b2": "relu.input_bias",
    "b3": "relu.output_bias",
    "scale": "linear2.multiplier",
}
BLOCKS = {
    "encoder": ["self_attention", "feed_forward"],
    "decoder": ["self_attention", "cross_attention", "feed_forward"],
}


def counterpart(name: str) -> str:
    """The converted network's name of a hand-written parameter."""
    if name == "table":
        return "embedding.weight"
    if name == "b":
        return "classifier.input_bias"
    stack, layer, index, part, rest = re.fullmatch(r"(\w+)\.(\d+)\.(\d)\.(\w+)(.*)", name).groups()
    block = BLOCKS[stack][int(index)]
    inside = (FEED_FORWARD if block == "feed_forward" else ATTENTION)[part]
    return f"{stack}.layers.{layer}.{block}.{inside}{rest}"


def matched(layers: int, decoder_layers: int, norm: str, scheme: str) -> tuple[nn.Module, nn.Module, dict[str, str]]:
    """Both with the same random weights and scalars; with SkipInit the biases by hand stay zero."""
    hand = FixupTransformer(layers, decoder_layers).double()
    model = transformer(VOCABULARY, layers, WIDTH, HEADS, HIDDEN, norm, 0.0, decoder_layers)  # type: ignore[arg-type]
    net = nl.convert(model, scheme).double()
    theirs = dict(net.named_parameters())
    names = {name: counterpart(name) for name, _ in hand.named_parameters()}
    if scheme != "fixup":
        names = {name: other for name, other in names.items() if not other.endswith(("input_bias", "output_bias"))}
        names = {name: other for name, other in names.items() if name != "b" and "relu" not in other}
    assert set(names.values()) == set(theirs)
    with torch.no_grad():
        for name, other in names.items():
            parameter = hand.get_parameter(name)
            assert parameter.shape == theirs[other].shape, name
            parameter.copy_((0.5 if parameter.dim() == 1 else 0.2) * torch.randn_like(parameter))
            theirs[other].copy_(parameter)
    return hand, net, names


def batch() -> tuple[Tensor, Tensor, Tensor]:
    source, target, labels = (torch.randint(1, VOCABULARY, (4, length)) for length in (6, 5, 5))
    source[1, 3:] = 0
    return source, target, labels


def loss_of(model: Callable[[Tensor, Tensor], Tensor], source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(source, target).flatten(0, 1), labels.flatten())


CASES = [(2, 3, "pre", "fixup"), (3, 2, "post", "fixup"), (2, 2, "pre", "skipinit(alpha=1)")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_outputs_and_all_gradients(case: tuple[int, int, str, str]) -> None:
    hand, net, names = matched(*case)
    source, target, labels = batch()
    expected = hand(source, target)
    assert expected.std() > 0.1
    # Positions are sines of angles in float32.
    torch.testing.assert_close(net(source, target), expected, rtol=1e-4, atol=1e-4)
    loss_of(hand, source, target, labels).backward()
    loss_of(net, source, target, labels).backward()
    theirs = dict(net.named_parameters())
    for name, other in names.items():
        wanted, found = hand.get_parameter(name).grad, theirs[other].grad
        scale = wanted.abs().max().item()
        # A shift of all keys is taken away by the softmax.
        assert scale > 1e-9 or other.endswith("key.input_bias"), name
        assert (found - wanted).abs().max().item() <= 1e-4 * scale + 1e-8, name


def test_the_initialization_is_the_template_of_section_3() -> None:
    """Zero at every branch end, L^(-1/2) on the other weights but queries and keys, multipliers 1, biases 0."""
    model = transformer(VOCABULARY, 3, 64, 4, 128, decoder_layers=2)
    net = nl.convert(model, "fixup")
    for name, parameter in net.named_parameters():
        if parameter.numel() == 1:
            assert parameter.item() == (1.0 if name.endswith("multiplier") else 0.0), name
        elif name.endswith(("bias", "output.weight", "linear2.weight")):
            assert not parameter.any(), name
        elif name.endswith(("value.weight", "linear1.weight")):
            xavier = 2 / sum(parameter.shape)
            assert parameter.var().item() == pytest.approx(xavier / 12, rel=0.1), name
        elif name.endswith(("query.weight", "key.weight")):
            assert parameter.var().item() == pytest.approx(1 / 64, rel=0.1), name
