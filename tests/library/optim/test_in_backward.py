"""Steps taken during the backward pass against those after it: weights, state, and the memory of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

import normless as nl
from normless.models import wide_resnet

IMAGES = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(4)


def network(scheme: str = "fixup") -> nn.Module:
    """With Fixup, a bias that skip path and branch share, and thousands of weights in 9 blocks."""
    torch.manual_seed(0)
    made = nl.convert(wide_resnet(28, 1, in_channels=1), scheme)
    with torch.no_grad():
        for one in made.parameters():
            one.add_(0.02 * torch.randn_like(one))
    return made


def trained(model: nn.Module, optimizer: Optimizer, steps: int = 3) -> nn.Module:
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(IMAGES), LABELS).backward()
        optimizer.step()
    return model


def in_two_groups(parameters: Iterable[nn.Parameter]) -> SGD:
    """Scalars first and last, so that a step in the pass has some of both groups."""
    listed = [*parameters]
    scalars, others = ([one for one in listed if (one.numel() == 1) == is_one] for is_one in (True, False))
    return SGD([{"params": scalars, "lr": 0.01}, {"params": others}], lr=0.1, momentum=0.9, weight_decay=1e-3)


@pytest.mark.parametrize(
    ("build", "recomputed"),
    [
        (lambda parameters: SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3), True),
        (in_two_groups, False),
        (lambda parameters: AdamW(parameters, lr=1e-3), False),
    ],
)
def test_weights_and_state_are_those_of_steps_after_the_pass(
    build: Callable[[Iterable[nn.Parameter]], Optimizer], recomputed: bool
) -> None:
    plain = network()
    other = deepcopy(plain)
    if recomputed:
        nl.optim.recompute_blocks(other)
    optimizer, in_backward = build(plain.parameters()), build(other.parameters())
    groups = [list(group["params"]) for group in in_backward.param_groups]
    nl.optim.step_in_backward(in_backward)
    for _ in range(2):
        trained(plain, optimizer)
        trained(other, in_backward)
        pairs = ((plain, optimizer), (other, in_backward))
        states = [(net.state_dict(), one.state_dict()["state"]) for net, one in pairs]
        torch.testing.assert_close(*states, rtol=0, atol=0)
        # Of a checkpoint, which makes new groups.
        in_backward.load_state_dict(in_backward.state_dict())
    for before, group in zip(groups, in_backward.param_groups, strict=True):
        assert list(map(id, before)) == list(map(id, group["params"]))


def test_gradients_take_a_share_of_the_memory_until_it_is_closed() -> None:
    model = network("skipinit")
    parameters = list(model.parameters())
    optimizer = SGD(parameters, lr=0.01)
    hooks = nl.optim.step_in_backward(optimizer)
    most = 0

    def count(_: torch.Tensor) -> None:
        nonlocal most
        most = max(most, sum(one.grad.nbytes for one in parameters if one.grad is not None))

    for one in parameters:
        one.register_post_accumulate_grad_hook(count)
    trained(model, optimizer, steps=1)
    total = sum(one.nbytes for one in parameters)
    assert 0 < most <= total / 64 + max(one.nbytes for one in parameters)
    hooks.close()
    trained(model, optimizer, steps=1)
    assert most == total
