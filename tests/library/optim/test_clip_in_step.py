"""Adaptive clipping as a part of an optimizer's step, with the classifier left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models.spec import build_model
from normless.optim import clip_in_step


class TwoHeads(nn.Module):
    """Policy and value read from one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.hidden = nn.Linear(3, 8), nn.Linear(8, 8)
        self.policy, self.value = nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.stem(x)
        h = h + self.hidden(F.relu(h))
        return self.policy(h), self.value(h)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor, set[str]]] = {
    "nfnet": (lambda: build_model("timm:test_nfnet"), torch.randn(2, 3, 32, 32), {"head.fc.weight", "head.fc.bias"}),
    "two heads": (TwoHeads, torch.randn(5, 3), {"policy.weight", "policy.bias", "value.weight", "value.bias"}),
    "converted": (
        lambda: nl.convert(build_model("torchvision:resnet18"), "nf_resnet", torch.randn(2, 3, 32, 32)),
        torch.randn(2, 3, 32, 32),
        {"fc.weight", "fc.bias"},
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_everything_but_what_the_outputs_are_read_from_is_clipped(name: str) -> None:
    make, x, heads = NETWORKS[name]
    model = make()
    seen: dict[str, float] = {}

    class Noting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.update(
                (key, float(one.grad.norm())) for key, one in model.named_parameters() if one.grad is not None
            )

    optimizer = Noting(model.parameters(), lr=0.1)
    handle = clip_in_step(optimizer, model, x, clip=1e-6)
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()
    whole = {key: float(torch.ones_like(one).norm()) for key, one in model.named_parameters()}
    assert {key for key in seen if seen[key] == whole[key]} == heads & seen.keys()
    handle.remove()
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()
    assert seen == whole


def test_an_nfnet_trains_with_adamw() -> None:
    torch.manual_seed(0)
    model = build_model("timm:test_nfnet(num_classes=10)")
    y = torch.arange(10)
    x = F.interpolate(torch.randn(10, 3, 4, 4), size=32)
    optimizer = torch.optim.AdamW(nl.param_groups(model, x, lr=1e-3, weight_decay=1e-4))
    clip_in_step(optimizer, model, x)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert max(losses) < 1.5 * losses[0]
    assert losses[-1] < losses[0] / 2
