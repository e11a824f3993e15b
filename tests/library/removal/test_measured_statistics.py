"""What a removal measures, against loops over tokens; and what frozen norms compute, against their formula."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from removed import QUICK, TOKENS, ChannelNorm, LanguageModel, next_token, one_step, relative, train
from removed import with_random_affines as drawn
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


class ActivatedNorm(nn.LayerNorm):
    """A layer norm that applies an activation."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


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
    "without γ": (nn.LayerNorm(8, elementwise_affine=False), VECTORS, deviations),
    "RMS norm": (nn.RMSNorm(8), VECTORS, lengths),
    "of Gemma": (RootMeanSquare(8), VECTORS, lengths),
    "several axes": (nn.LayerNorm((8, 4, 4)), IMAGES, lambda x: x.flatten(1).std(1, correction=0)),
    "channels": (ChannelNorm(8), IMAGES, lambda x: x.movedim(1, -1).reshape(-1, 8).std(1, correction=0)),
    "with activation": (ActivatedNorm(8), VECTORS, deviations),
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
    if name == "several axes":
        assert float(made.centre) == pytest.approx(float(x.mean()), abs=1e-6)
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


def test_later_steps_are_averaged_and_a_shared_norm_is_measured_at_all_of_its_places() -> None:
    net = measured(nn.LayerNorm(8), VECTORS)
    for factor in (2.0, 6.0):
        net.removal.loss(net(factor * VECTORS).sum())
        net.removal.step()
    token = VECTORS[:, 1:].std(2, correction=0).mean()
    # The second freezing began after step 2, of which the third is not part.
    assert float(net.norm.constant[1]) == pytest.approx(float(token * (1 + 2) / 2), rel=1e-4)
    assert net.removal.frozen == ("norm",)
    parts = {"norm": nn.LayerNorm(8), "first": nn.Linear(8, 8)}
    shared: Any = Written(lambda net, x: net.norm(3 * net.first(net.norm(x))), **parts)
    inner = shared.first(shared.norm(VECTORS)).detach()
    one_step(shared, VECTORS)
    spreads = [x[:, 1:].std(2, correction=0).mean() for x in (VECTORS, 3 * inner)]
    assert float(shared.norm.constant[1]) == pytest.approx(float(sum(spreads) / 2), rel=1e-4)


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


def test_parts_of_a_batch_are_measured_together_and_half_precision_in_full_precision() -> None:
    nets: list[Any] = [LanguageModel() for _ in range(3)]
    for net in nets[1:]:
        net.load_state_dict(nets[0].state_dict())
    removals = [nl.remove_norms(net.train(), TOKENS, **QUICK) for net in nets]
    removals[0].loss(next_token(nets[0])).backward()  # type: ignore[no-untyped-call]
    for rows in TOKENS.split(1):  # type: ignore[no-untyped-call]
        removals[1].loss(next_token(nets[1], rows) / 4, parts=4).backward()  # type: ignore[no-untyped-call]
    with torch.autocast("cpu", torch.bfloat16):
        loss = next_token(nets[2])
    removals[2].loss(loss).backward()  # type: ignore[no-untyped-call]
    for removal in removals:
        removal.step()
    for path in removals[0].places:
        whole, parts, half = (net.get_submodule(path).constant for net in nets)
        assert torch.allclose(whole, parts, rtol=1e-5)
        assert half.dtype == torch.float32
        assert torch.allclose(whole, half, rtol=0.02)
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-6)
    assert removals[0]._schedule.losses == pytest.approx(removals[1]._schedule.losses, rel=1e-5)


@pytest.mark.parametrize("length", [10, *(pytest.param(length, marks=pytest.mark.slow) for length in (1, 6, 17))])
def test_the_first_token_has_its_own_constant_until_the_end(length: int) -> None:
    net: Any = LanguageModel(qk=length != 10)
    with torch.no_grad():
        net.positions[0] *= 100  # as the attention sinks of language models
    removal = nl.remove_norms(net, TOKENS, **QUICK)
    tokens = torch.arange(3 * length).reshape(3, length) % 20
    train(net, removal, lambda net: net(tokens).square().mean(), steps=range(4))
    norm = net.get_submodule(removal.frozen[0])
    if length > 1:
        assert norm.constant[0] > 2 * norm.constant[1]
        with pytest.raises(nl.UnsupportedEditError, match="first token of a sequence by a constant of its own"):
            nl.fold(net, TOKENS)
    train(net, removal, lambda net: net(tokens).square().mean())
    assert removal.done
    assert length == 1 or sum(freezing.what == "first token" for freezing in removal.history) >= 5
    assert torch.equal(norm.constant[0], norm.constant[1])
    made, _ = nl.fold(removal.finish().eval(), TOKENS)
    assert relative(made(tokens), net.eval()(tokens)) < 1e-5
