"""Every scheme on the simulated card: a conversion there, a forward and a backward pass, and folding what is left."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import Transformer, resnet_cifar, wide_resnet

IMAGES = ["wide", "cifar"]
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "wide": lambda: wide_resnet(10, 1, in_channels=1),
    "cifar": lambda: resnet_cifar(8, in_channels=1),
    "pre": lambda: Transformer(9, layers=1, width=8, heads=2, feed_forward=8, norm="pre"),
    "post": lambda: Transformer(9, layers=1, width=8, heads=2, feed_forward=8, norm="post"),
}
# With arguments by which they take another way.
FURTHER = (
    "ghost_batch_norm(size=3)",
    "partial_batch_norm(mean=False)",
    "fixup(zero=False)",
    "nf_resnet(multiplier=False)",
    "depth_mup(optimizer=sgd)",
)


def inputs_of(name: str, device: torch.device) -> tuple[Tensor, ...]:
    if name in IMAGES:
        return (torch.randn(6, 1, 8, 8, device=device),)
    return torch.randint(1, 9, (3, 4), device=device), torch.randint(1, 9, (3, 5), device=device)


def convert_somewhere(scheme: str, card: torch.device) -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    """The converted networks on the card, the first for images and the first for tokens that the scheme takes."""
    found: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {}
    for name, make in NETWORKS.items():
        if any((other in IMAGES) == (name in IMAGES) for other in found):
            continue
        inputs = inputs_of(name, card)
        try:
            found[name] = nl.convert(make().to(card), scheme, *inputs), inputs
        except nl.errors.UnsupportedEditError:
            continue
    return found


def losses(model: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    logits = model(*inputs).flatten(0, -2)
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device) % logits.shape[-1])


@pytest.mark.parametrize("scheme", [*nl.SCHEMES, *FURTHER])
def test_a_network_is_converted_and_trained(card: torch.device, scheme: str) -> None:
    converted = convert_somewhere(scheme, card)
    assert converted, scheme
    for model, inputs in converted.values():
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        # The second step of alternating norms differs from the first.
        for _ in range(2):
            optimizer.zero_grad()
            losses(model, inputs).backward()
            optimizer.step()
        assert torch.isfinite(losses(model.eval(), inputs))
        assert {value.device for value in model.state_dict().values()} == {card}
        again = deepcopy(model)
        again.load_state_dict(model.state_dict())
        assert torch.equal(again(*inputs), model(*inputs))


@pytest.mark.parametrize("scheme", ["batch_norm", "ghost_batch_norm", "partial_batch_norm", "fixup"])
def test_a_converted_network_is_folded_frozen_and_fused(card: torch.device, scheme: str) -> None:
    model, inputs = convert_somewhere(scheme, card)["wide"]
    losses(model, inputs).backward()
    model.eval()
    before = model(*inputs)
    fused = nl.fuse_for_inference(model, *inputs, allow_partial=True)
    for after in (nl.fold(model, *inputs)[0], nl.freeze(model), fused):
        with torch.no_grad():
            torch.testing.assert_close(after(*inputs).cpu(), before.cpu(), rtol=1e-4, atol=1e-5)
        assert {value.device for value in after.state_dict().values()} == {card}
