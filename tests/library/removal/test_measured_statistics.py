"""What a removal measures, against loops over tokens; and what frozen norms compute, against their formula."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from removed import QUICK, TOKENS, LanguageModel, next_token, relative, train, with_random_affines
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


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class ActivatedNorm(nn.LayerNorm):
    """A layer norm that applies an activation."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def one_step(norm: nn.Module, x: Tensor) -> tuple[Written, FreezableNorm, nl.Removal]:
    """A network with a norm after a step of measuring on x."""
    net = Written(
        lambda net, x: net.last(net.norm(x)), norm=norm, last=nn.Conv2d(8, 2, 1) if x.dim() == 4 else nn.Linear(8, 2)
    )
    removal = nl.remove_norms(net, x, **QUICK)
    net.train()
    removal.loss(net(x).sum())
    removal.step()
    assert isinstance(net.norm, FreezableNorm)
    return net, net.norm, removal


NORMS: dict[str, tuple[nn.Module, Tensor, Any]] = {
    "layer norm": (nn.LayerNorm(8), VECTORS, lambda x: x.flatten(0, 1).std(1, correction=0)),
    "without γ": (nn.LayerNorm(8, elementwise_affine=False), VECTORS, lambda x: x.flatten(0, 1).std(1, correction=0)),
    "RMS norm": (nn.RMSNorm(8), VECTORS, lambda x: x.flatten(0, 1).square().mean(1).sqrt()),
    "of Gemma": (RootMeanSquare(8), VECTORS, lambda x: x.flatten(0, 1).square().mean(1).sqrt()),
    "several axes": (nn.LayerNorm((8, 4, 4)), IMAGES, lambda x: x.flatten(1).std(1, correction=0)),
    "channels": (ChannelNorm(8), IMAGES, lambda x: x.movedim(1, -1).reshape(-1, 8).std(1, correction=0)),
    "with activation": (ActivatedNorm(8), VECTORS, lambda x: x.flatten(0, 1).std(1, correction=0)),
}


@pytest.mark.parametrize("name", NORMS)
def test_the_constant_is_the_mean_deviation_of_a_token(name: str) -> None:
    norm, x, spreads = NORMS[name]
    expected = with_random_affines(deepcopy(norm))
    original = deepcopy(expected)
    net, made, _ = one_step(expected, x)
    assert relative(made.eval()(x), original(x)) < 1e-5
    token = spreads(x)
    if x.dim() == 3:
        first = spreads(x[:, :1])
        token = spreads(x[:, 1:])
        assert float(made.constant[0, 0]) == pytest.approx(float(first.mean()), rel=1e-4)
    assert float(made.constant[1, 0]) == pytest.approx(float(token.mean()), rel=1e-4)
    if name == "several axes":
        assert float(made.centre) == pytest.approx(float(x.mean()), abs=1e-6)
    assert {name for name, _ in net.norm.named_parameters()} == {name for name, _ in original.named_parameters()}


def test_a_group_norm_has_a_constant_and_a_mean_for_each_group() -> None:
    norm = with_random_affines(nn.GroupNorm(2, 8))
    original = deepcopy(norm)
    x = 2 * IMAGES + torch.arange(8.0)[:, None, None]
    _, made, _ = one_step(norm, x)
    groups = x.reshape(6, 2, -1)
    assert made.constant[1].tolist() == pytest.approx(groups.std(2, correction=0).mean(0).tolist(), rel=1e-4)
    assert made.centre.tolist() == pytest.approx(groups.mean((0, 2)).tolist(), rel=1e-4)
    assert relative(made(x), original(x)) < 1e-5
    made.frozen.fill_(1.0)
    mean, divisor = (values.repeat_interleave(4)[:, None, None] for values in (made.centre, made.constant[1]))
    expected = (x - mean) / divisor * original.weight[:, None, None] + original.bias[:, None, None]
    assert relative(made(x), expected) < 1e-5


def test_later_steps_are_averaged() -> None:
    net, norm, removal = one_step(nn.LayerNorm(8), VECTORS)
    for factor in (2.0, 6.0):
        removal.loss(net(factor * VECTORS).sum())
        removal.step()
    token = VECTORS[:, 1:].std(2, correction=0).mean()
    # The second freezing began after step 2, of which the third is not part.
    assert float(norm.constant[1]) == pytest.approx(float(token * (1 + 2) / 2), rel=1e-4)
    assert removal.frozen == ("norm",)


def test_masked_tokens_do_not_count_and_the_first_token_may_follow_padding() -> None:
    torch.manual_seed(0)
    net = LanguageModel()
    removal = nl.remove_norms(net, TOKENS, **QUICK)
    mask = torch.ones_like(TOKENS)
    mask[0, :4] = 0  # padding on the left
    mask[1, 7:] = 0  # padding on the right
    seen: list[Tensor] = []
    net.ln_f.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    removal.loss(net.train()(TOKENS, attention_mask=mask).sum())
    removal.step()
    first, others = [], []
    for row in range(4):
        tokens = [seen[0][row, at].std(correction=0).item() for at in range(10) if mask[row, at]]
        first.append(tokens[0])
        others += tokens[1:]
    constant = net.ln_f.constant[:, 0].tolist()
    assert constant == pytest.approx([sum(first) / 4, sum(others) / len(others)], rel=1e-4)


def test_a_mask_may_be_a_function_of_the_inputs() -> None:
    torch.manual_seed(0)
    net = LanguageModel()
    removal = nl.remove_norms(net, TOKENS, tokens=lambda tokens: tokens != 0, **QUICK)
    seen: list[Tensor] = []
    net.ln_f.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    removal.loss(net.train()(TOKENS).sum())
    removal.step()
    others = [seen[0][row, at].std(correction=0).item() for row in range(4) for at in range(10) if TOKENS[row, at]]
    firsts = [next(at for at in range(10) if TOKENS[row, at]) for row in range(4)]
    first = [seen[0][row, at].std(correction=0).item() for row, at in enumerate(firsts)]
    expected = (sum(others) - sum(first)) / (len(others) - 4)
    assert float(net.ln_f.constant[1]) == pytest.approx(expected, rel=1e-4)


def test_a_shared_norm_is_measured_at_all_of_its_places() -> None:
    norm = nn.LayerNorm(8)
    net = Written(lambda net, x: net.norm(3 * net.first(net.norm(x))), norm=norm, first=nn.Linear(8, 8))
    removal = nl.remove_norms(net, VECTORS, **QUICK)
    inner = net.first(net.eval().norm(VECTORS)).detach()
    removal.loss(net.train()(VECTORS).sum())
    removal.step()
    spreads = [x[:, 1:].std(2, correction=0).mean() for x in (VECTORS, 3 * inner)]
    assert float(net.norm.constant[1]) == pytest.approx(float(sum(spreads) / 2), rel=1e-4)


def test_parts_of_a_batch_are_measured_together() -> None:
    torch.manual_seed(0)
    whole = LanguageModel()
    parts = deepcopy(whole)
    removals = [nl.remove_norms(net, TOKENS, **QUICK) for net in (whole, parts)]
    removals[0].loss(next_token(whole.train())).backward()
    for rows in TOKENS.split(1):
        removals[1].loss(next_token(parts.train(), rows) / 4, parts=4).backward()
    for removal in removals:
        removal.step()
    for path in removals[0].places:
        a, b = (net.get_submodule(path).constant for net in (whole, parts))
        assert torch.allclose(a, b, rtol=1e-5)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-6)
    assert removals[0]._schedule.losses == pytest.approx(removals[1]._schedule.losses, rel=1e-5)


@pytest.mark.parametrize("length", [17, *(pytest.param(length, marks=pytest.mark.slow) for length in (1, 6, 10))])
def test_sequences_may_have_other_lengths_than_the_example(length: int) -> None:
    torch.manual_seed(0)
    net = LanguageModel(qk=True)
    removal = nl.remove_norms(net, TOKENS, **QUICK)
    tokens = torch.arange(3 * length).reshape(3, length) % 20
    train(net, removal, lambda net: net(tokens).square().mean())
    expected = net.eval()(tokens)
    folded, report = nl.fold(removal.finish(), TOKENS)
    assert report.counts == {"folded": 9, "affine": 0, "kept": 0}
    assert relative(folded(tokens), expected) < 1e-5


def test_half_precision_is_measured_in_full_precision() -> None:
    torch.manual_seed(0)
    nets = [LanguageModel(), LanguageModel()]
    nets[1].load_state_dict(nets[0].state_dict())
    removals = [nl.remove_norms(net, TOKENS, **QUICK) for net in nets]
    removals[0].loss(next_token(nets[0].train())).backward()
    with torch.autocast("cpu", torch.bfloat16):
        loss = next_token(nets[1].train())
    removals[1].loss(loss).backward()
    for removal in removals:
        removal.step()
    for path in removals[0].places:
        a, b = (net.get_submodule(path).constant for net in nets)
        assert b.dtype == torch.float32
        assert torch.allclose(a, b, rtol=0.02)


def test_the_first_token_has_its_own_constant_until_the_end() -> None:
    torch.manual_seed(0)
    net = LanguageModel()
    with torch.no_grad():
        net.positions[0] *= 100  # as the attention sinks of language models
    removal = nl.remove_norms(net, TOKENS, **QUICK)
    train(net, removal, steps=range(4))
    norm = net.get_submodule(removal.frozen[0])
    assert norm.constant[0] > 2 * norm.constant[1]
    with pytest.raises(nl.UnsupportedEditError, match="first token of a sequence by a constant of its own"):
        nl.fold(net, TOKENS)
    train(net, removal)
    assert removal.done
    merged = [freezing for freezing in removal.history if freezing.what == "first token"]
    assert len(merged) >= 5
    assert torch.equal(norm.constant[0], norm.constant[1])
    expected = net.eval()(TOKENS)
    assert relative(nl.fold(removal.finish(), TOKENS)[0](TOKENS), expected) < 1e-5
