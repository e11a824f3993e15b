"""The transformer converted by Fixup and SkipInit against forward passes by hand, every scalar elementwise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import normless as nl
from normless.models import transformer

VOCABULARY, WIDTH, HEADS, HIDDEN = 17, 12, 2, 20
Weights = dict[str, Tensor]


class ByHand:
    """Attention and feed-forward blocks with a bias before each projection and activation, without any norm.

    Blocks are x + α·(W_o (softmax(q kᵀ/√d) v + b₄) + β) and x + α·W₂(relu(W₁(x + b₁) + b₂) + b₃).
    """

    def __init__(self, weights: Weights) -> None:
        self.w, self.read = weights, set[str]()

    def scalar(self, name: str) -> Tensor | float:
        self.read.add(name)
        return self.w.get(name, 0.0)

    def linear(self, path: str, x: Tensor) -> Tensor:
        names = (f"{path}.weight", f"{path}.bias")
        self.read |= {*names}
        return F.linear(x, self.w[names[0]], self.w.get(names[1]))

    def attention(self, path: str, x: Tensor, memory: Tensor, allowed: Tensor) -> Tensor:
        q, k, v = (
            self.linear(f"{path}.attention.{name}", of + self.scalar(f"{path}.attention.{name}.input_bias"))
            for name, of in (("query", x), ("key", memory), ("value", memory))
        )
        size, found = WIDTH // HEADS, []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = q[..., part] @ k[..., part].mT / math.sqrt(size)
            found.append(scores.masked_fill(~allowed, -math.inf).softmax(-1) @ v[..., part])
        scale = self.scalar(f"{path}.attention.output.multiplier")
        last = torch.cat(found, -1) + self.scalar(f"{path}.attention.output.input_bias")
        return x + scale * self.linear(f"{path}.attention.output", last)

    def feed_forward(self, path: str, x: Tensor) -> Tensor:
        h = self.linear(f"{path}.linear1", x + self.scalar(f"{path}.linear1.input_bias"))
        h = F.relu(h + self.scalar(f"{path}.relu.input_bias"))
        h = self.linear(f"{path}.linear2", h + self.scalar(f"{path}.relu.output_bias"))
        return x + self.scalar(f"{path}.linear2.multiplier") * h

    def embed(self, tokens: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1]).double()[:, None]
        rates = 10000 ** (-torch.arange(0, WIDTH, 2).double() / WIDTH)
        x = self.w["embedding.weight"][tokens] * math.sqrt(WIDTH)
        x[..., 0::2] = x[..., 0::2] + (place * rates).sin()
        x[..., 1::2] = x[..., 1::2] + (place * rates).cos()
        return x

    def __call__(self, source: Tensor, target: Tensor, layers: int, decoder_layers: int) -> Tensor:
        memory, read = self.embed(source), (source != 0)[:, None]
        for path in (f"encoder.layers.{at}" for at in range(layers)):
            memory = self.attention(f"{path}.self_attention", memory, memory, read)
            memory = self.feed_forward(f"{path}.feed_forward", memory)
        h = self.embed(target)
        earlier = torch.ones(target.shape[1], target.shape[1]).tril() > 0
        for path in (f"decoder.layers.{at}" for at in range(decoder_layers)):
            h = self.attention(f"{path}.self_attention", h, h, earlier)
            h = self.attention(f"{path}.cross_attention", h, memory, read)
            h = self.feed_forward(f"{path}.feed_forward", h)
        return (h + self.scalar("classifier.input_bias")) @ self.w["embedding.weight"].T


CASES = [(2, 3, "pre", "fixup"), (3, 2, "post", "fixup"), (2, 2, "pre", "skipinit(alpha=1)")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_outputs_and_all_gradients(case: tuple[int, int, str, str]) -> None:
    """Fixup has every scalar of the pass by hand, SkipInit its multipliers alone."""
    layers, decoder_layers, norm, scheme = case
    model = transformer(VOCABULARY, layers, WIDTH, HEADS, HIDDEN, norm, 0.0, decoder_layers)  # type: ignore[arg-type]
    net = nl.convert(model, scheme).double()
    w: Weights = dict(net.named_parameters())
    with torch.no_grad():
        for one in w.values():
            one.copy_((0.5 if one.dim() == 1 else 0.2) * torch.randn_like(one))
    source, target, labels = (torch.randint(1, VOCABULARY, (4, length)) for length in (6, 5, 5))
    source[1, 3:] = 0
    by_hand = ByHand(w)
    outputs = by_hand(source, target, layers, decoder_layers), net(source, target)
    scalars = {name for name in by_hand.read if name.endswith(("input_bias", "output_bias", "multiplier"))}
    scalars -= set() if scheme == "fixup" else {name for name in scalars if name.endswith("_bias")}
    # A bias of keys would change nothing.
    plain = {name for name in by_hand.read if name.endswith(("weight", ".bias")) and not name.endswith("key.bias")}
    assert {*w} == scalars | plain | {"embedding.weight"}
    assert outputs[0].std() > 0.1
    # Positions are sines of angles in float32.
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)
    wanted, found = (
        torch.autograd.grad(F.cross_entropy(y.flatten(0, 1), labels.flatten()), [*w.values()]) for y in outputs
    )
    for name, one, other in zip(w, found, wanted, strict=True):
        scale = other.abs().max().item()
        # A shift of all keys is taken away by the softmax.
        assert scale > 1e-9 or name.endswith("key.input_bias"), name
        assert (one - other).abs().max().item() <= 1e-4 * scale + 1e-8, name


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
