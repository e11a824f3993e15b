"""Schemes for transformers on ours, norms ahead and behind: what holds beyond the matrix."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Literal

import pytest
import torch
from matrix.case import perturbed
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import Transformer, transformer
from normless.nn import ResidualSum

Norm = Literal["pre", "post"]
LAYERS, DECODER_LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY = 2, 1, 16, 2, 24, 30
BLOCKS = 2 * LAYERS + 3 * DECODER_LAYERS
NORMS: tuple[Norm, Norm] = ("pre", "post")
# Those that the paper and its successors have for transformers.
CHOSEN = ["fixup", "skipinit", "rezero", "t_fixup", "deepnorm", "none", "xavier"]
CHOSEN += ["dyt", "derf", "layer_norm_scaling", "peri_norm"]
IDENTITY_AT_START = ["fixup", "skipinit", "rezero", "zeroinit", "fixup(multiplier=False)", "fixup(gain=10)"]


def words(*shape: int) -> Tensor:
    return torch.randint(1, VOCABULARY, shape)


def converted(scheme: str, norm: Norm, dropout: float = 0.0) -> Transformer:
    model = transformer(VOCABULARY, LAYERS, WIDTH, HEADS, HIDDEN, norm, dropout, DECODER_LAYERS)
    return nl.convert(model, scheme, *model.example_inputs())


def loss_of(net: nn.Module, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(source, target).flatten(0, 1), labels.flatten())


def pairs(schemes: list[str]) -> pytest.MarkDecorator:
    """Each scheme with both places of the norms, but for those that are for one of them."""
    refused = {"pre": {"deepnorm"}, "post": {"layer_norm_scaling", "peri_norm"}}
    chosen = [(scheme, norm) for scheme in schemes for norm in NORMS if scheme not in refused[norm]]
    return pytest.mark.parametrize(("scheme", "norm"), chosen, ids=["-".join(pair) for pair in chosen])


@pairs(IDENTITY_AT_START)
def test_every_block_starts_as_its_skip_path_bit_for_bit(scheme: str, norm: Norm) -> None:
    net = converted(scheme, norm, dropout=0.2).train()
    assert net.classifier.weight is net.embedding.weight
    assert not net.embedding.weight[0].any()
    seen: dict[str, bool] = {}
    for name, module in net.named_modules():
        if isinstance(module, ResidualSum):
            module.register_forward_hook(
                lambda _, inputs, output, name=name: seen.update({name: torch.equal(inputs[0], output)})
            )
    net(words(3, 6), words(3, 4))
    assert len(seen) == BLOCKS
    assert all(seen.values())
    # Then the memory is the embedded source, and the logits look up the embedded target.
    net.eval()
    source, target = words(3, 6), words(3, 4)
    states = net._embedded(target)
    assert torch.equal(net.encode(source).states, net._embedded(source))
    if not scheme.startswith("zeroinit"):
        torch.testing.assert_close(net(source, target), states @ net.embedding.weight.T)


@pairs(CHOSEN)
def test_examples_alone_cached_decoding_and_gradients(scheme: str, norm: Norm) -> None:
    """Each example is computed on its own, token by token as all at once; every parameter gets a gradient."""
    net = converted(scheme, norm).double()
    check_every_parameter_learns(deepcopy(net))
    perturbed(net, 0.1)
    source, target = words(4, 6), words(4, 5)
    source[2, 3:] = 0
    together = net(source, target)
    assert together.std() > 1e-3
    alone = torch.cat([net(source[[row]], target[[row]]) for row in range(4)])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)
    memory, cache, logits = net.encode(source), None, []
    for step in range(5):
        new, cache = net.decode(target[:, [step]], memory, cache)
        logits.append(new)
    torch.testing.assert_close(torch.cat(logits, 1), together, rtol=1e-9, atol=1e-9)
    if (scheme, norm) in (("fixup", "pre"), ("none", "post")):
        assert not nl.mixes_examples(net, source, target)


def check_every_parameter_learns(net: Transformer) -> None:
    """Those of the decoder after one step; what the encoder makes is read only then, so its own follow one later."""
    source, target, labels = words(8, 7), words(8, 5), words(8, 5)
    for step in range(3):
        net.zero_grad()
        loss_of(net, source, target, labels).backward()
        idle = {name for name, one in net.named_parameters() if one.grad.abs().max() < 1e-14}
        # What shifts all keys alike shifts all scores of a query alike, and the softmax takes that away.
        idle -= {name for name, _ in net.named_parameters() if name.endswith("key.input_bias")}
        assert step == 0 or not {name for name in idle if step == 2 or not name.startswith("encoder")}
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad


# Those whose formula has the depth, and one of those that start a branch at zero.
@pytest.mark.parametrize(
    ("scheme", "norm"),
    [
        ("fixup", "post"),
        pytest.param("deepnorm", "post", marks=pytest.mark.slow),
        pytest.param("layer_norm_scaling", "pre", marks=pytest.mark.slow),
    ],
)
def test_200_layers_deep_outputs_and_gradients_are_finite(scheme: str, norm: Norm) -> None:
    model = transformer(VOCABULARY, 100, 8, 2, 8, norm=norm)
    net = nl.convert(model, scheme)
    assert nl.residual_map(net).depth == 500
    loss = loss_of(net, words(2, 5), words(2, 4), words(2, 4))
    assert loss.item() < 3 * math.log(VOCABULARY)
    loss.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
