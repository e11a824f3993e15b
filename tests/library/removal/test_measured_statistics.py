"""What a removal measures, against loops over tokens; and what frozen norms compute, against their formula."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from removed import QUICK, TOKENS, ChannelNorm, LanguageModel, one_step, relative, train, with_random_affines as drawn
from torch import Tensor, nn
from written_networks import Written

import normless as nl
from normless.nn import FreezableNorm

IMAGES = torch.randn(6, 8, 4, 4, generator=torch.Generator().manual_seed(0))
VECTORS = torch.randn(5, 7, 8, generator=torch.Generator().manual_seed(1))


class RootMeanSquare(nn.Module):
    """As in Gemma: x / rms · (1 + w)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.epsilon, self.scale = 1e-6, nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * (1 + self.scale)


def measured(norm: nn.Module, x: Tensor) -> Any:
    """A network with a norm after a step of measuring on x."""
    last = nn.Conv2d(8, 2, 1) if x.dim() == 4 else nn.Linear(8, 2)
    net = Written(lambda net, x: net.last(net.norm(x)), norm=norm, last=last)
    net.removal = one_step(net, x)  # type: ignore[assignment]
    assert isinstance(net.norm, FreezableNorm)
    return net


def deviations(x: Tensor) -> Tensor:
    return x.flatten(0, 1).std(1, correction=0)


def lengths(x: Tensor) -> Tensor:
    return x.flatten(0, 1).square().mean(1).sqrt()


NORMS: dict[str, tuple[nn.Module, Tensor, Callable[[Tensor], Tensor]]] = {
    "layer norm": (nn.LayerNorm(8), VECTORS, deviations),
    "RMS norm": (nn.RMSNorm(8), VECTORS, lengths),
    "of Gemma": (RootMeanSquare(8), VECTORS, lengths),
    "channels": (ChannelNorm(8), IMAGES, lambda x: x.movedim(1, -1).reshape(-1, 8).std(1, correction=0)),
}


@pytest.mark.parametrize("name", NORMS)
def test_the_constant_is_the_mean_deviation_of_a_token(name: str) -> None:
    norm, x, spreads = NORMS[name]
    original = drawn(deepcopy(norm))
    made = measured(deepcopy(original), x).norm
    assert relative(made.eval()(x), original(x)) < 1e-5
    if x.dim() == 3:
        assert float(made.constant[0, 0]) == pytest.approx(float(spreads(x[:, :1]).mean()), rel=1e-4)
    token = spreads(x[:, 1:] if x.dim() == 3 else x)
    assert float(made.constant[1, 0]) == pytest.approx(float(token.mean()), rel=1e-4)
    assert {name for name, _ in made.named_parameters()} == {name for name, _ in original.named_parameters()}


def test_a_group_norm_has_a_constant_and_a_mean_for_each_group() -> None:
    original, x = drawn(nn.GroupNorm(2, 8)), 2 * IMAGES + torch.arange(8.0)[:, None, None]
    made, groups = measured(deepcopy(original), x).norm, x.reshape(6, 2, -1)
    assert made.constant[1].tolist() == pytest.approx(groups.std(2, correction=0).mean(0).tolist(), rel=1e-4)
    assert made.centre.tolist() == pytest.approx(groups.mean((0, 2)).tolist(), rel=1e-4)
    assert relative(made(x), original(x)) < 1e-5
    made.frozen.fill_(1.0)
    mean, divisor = (values.repeat_interleave(4)[:, None, None] for values in (made.centre, made.constant[1]))
    expected = (x - mean) / divisor * original.weight[:, None, None] + original.bias[:, None, None]
    assert relative(made(x), expected) < 1e-5


@pytest.mark.parametrize("by_function", [False, True])
def test_masked_tokens_do_not_count_and_the_first_token_may_follow_padding(by_function: bool) -> None:
    net: Any = LanguageModel()
    mask = torch.ones_like(TOKENS)
    mask[0, :4] = 0  # padding on the left
    mask[1, 7:] = 0  # padding on the right
    mask = TOKENS != 0 if by_function else mask
    options = {"tokens": lambda tokens: tokens != 0} if by_function else {}
    removal, seen = nl.remove_norms(net, TOKENS, **QUICK, **options), list[Tensor]()  # type: ignore[arg-type]
    net.ln_f.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    removal.loss(net.train()(TOKENS, **({} if by_function else {"attention_mask": mask})).sum())
    removal.step()
    first, others = [], []
    for row in range(4):
        tokens = [seen[0][row, at].std(correction=0).item() for at in range(10) if mask[row, at]]
        first.append(tokens[0])
        others += tokens[1:]
    constant = net.ln_f.constant[:, 0].tolist()
    assert constant == pytest.approx([sum(first) / 4, sum(others) / len(others)], rel=1e-4)


def test_the_first_token_has_its_own_constant_until_the_end() -> None:
    net: Any = LanguageModel()
    with torch.no_grad():
        net.positions[0] *= 100  # as the attention sinks of language models
    removal = nl.remove_norms(net, TOKENS, **QUICK)
    tokens = torch.arange(30).reshape(3, 10) % 20
    train(net, removal, lambda net: net(tokens).square().mean(), steps=range(4))
    norm = net.get_submodule(removal.frozen[0])
    assert norm.constant[0] > 2 * norm.constant[1]
    with pytest.raises(nl.errors.UnsupportedEditError, match="first token of a sequence by a constant of its own"):
        nl.fold(net, TOKENS)
    train(net, removal, lambda net: net(tokens).square().mean())
    assert removal.done
    assert sum(freezing.what == "first token" for freezing in removal.history) >= 5
    assert torch.equal(norm.constant[0], norm.constant[1])
    made, _ = nl.fold(removal.finish().eval(), TOKENS)
    assert relative(made(tokens), net.eval()(tokens)) < 1e-5
