"""Adaptive gradient clipping: closed forms, a loop over units, any shape, and as a part of an optimizer's step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl
from normless.models import wide_resnet
from normless.models.spec import build_model
from normless.optim import clip_in_step


def parameter(weight: list[list[float]] | list[float], gradient: list[list[float]] | list[float]) -> nn.Parameter:
    made = nn.Parameter(torch.tensor(weight))
    made.grad = torch.tensor(gradient)
    return made


def test_rows_are_clipped_each_by_its_own_norm() -> None:
    """‖w‖ = 5, 5 and 0; λ = 0.1 allows 0.5, 0.5 and λ·ε = 1e-4."""
    p = parameter([[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]], [[3.0, 4.0], [0.3, 0.4], [0.0, 2.0]])
    nl.adaptive_gradient_clipping([p], clip=0.1)
    torch.testing.assert_close(p.grad, torch.tensor([[0.3, 0.4], [0.3, 0.4], [0.0, 1e-4]]))


def units(x: Tensor) -> list[Tensor]:
    return list(x) if x.dim() > 1 else [x]


shapes = st.lists(st.integers(1, 4), min_size=0, max_size=5).map(tuple)


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(0, 2**20), st.floats(1e-3, 1), st.floats(1e-4, 1), st.floats(1e-3, 1e3))
def test_any_shape(shape: tuple[int, ...], seed: int, clip: float, eps: float, size: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    p = nn.Parameter(torch.randn(shape, generator=draw, dtype=torch.float64))
    p.grad = size * torch.randn(shape, generator=draw, dtype=torch.float64)
    before = p.grad.clone()
    nl.adaptive_gradient_clipping([p], clip, eps)
    for w, g, clipped in zip(units(p.detach()), units(before), units(p.grad), strict=True):
        limit = clip * max(w.square().sum().sqrt().item(), eps)
        norm = g.square().sum().sqrt().item()
        torch.testing.assert_close(clipped, g * min(1, limit / norm), rtol=1e-12, atol=0)
        assert clipped.norm().item() <= limit * (1 + 1e-12)
        if norm < limit:
            assert torch.equal(clipped, g)
    once = p.grad.clone()
    nl.adaptive_gradient_clipping([p], clip, eps)
    torch.testing.assert_close(p.grad, once, rtol=1e-12, atol=0)


def test_a_network_with_its_classifier_left_out() -> None:
    model = wide_resnet(10, 1)
    for p in model.parameters():
        p.grad = torch.full_like(p, 100.0)
    model.norm.bias.grad = None
    nl.adaptive_gradient_clipping(model, exclude=model.classifier)
    assert all((p.grad == 100).all() for p in model.classifier.parameters())
    assert model.norm.bias.grad is None
    assert model.stem.weight.grad.abs().max() < 1
    nl.adaptive_gradient_clipping(model, exclude=[model.classifier.bias])
    assert model.classifier.weight.grad.abs().max() < 1
    assert (model.classifier.bias.grad == 100).all()
    nl.adaptive_gradient_clipping(model.classifier.bias)
    assert (model.classifier.bias.grad < 100).all()


def test_an_infinite_row_does_not_touch_the_others() -> None:
    p = parameter([[1.0, 0.0], [1.0, 0.0]], [[float("inf"), 1.0], [0.001, 0.0]])
    nl.adaptive_gradient_clipping([p])
    assert torch.equal(p.grad[1], torch.tensor([0.001, 0.0]))
    assert not p.grad[0].isfinite().all()


def test_zero_gradients_stay_zero_and_bf16_is_measured_in_float32() -> None:
    p = parameter([[1.0, 0.0]], [[0.0, 0.0]])
    nl.adaptive_gradient_clipping([p])
    assert torch.equal(p.grad, torch.zeros(1, 2))
    half = nn.Parameter(torch.ones(1, 4096, dtype=torch.bfloat16))
    half.grad = torch.ones_like(half)
    nl.adaptive_gradient_clipping([half], clip=0.5)
    assert half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(half.grad, torch.full_like(half, 0.5))


def test_refusals() -> None:
    for clip, eps in ((0.0, 1e-3), (-1.0, 1e-3), (0.01, 0.0), (float("nan"), 1e-3)):
        with pytest.raises(ValueError, match=r"Expected clip and eps above 0, got clip="):
            nl.adaptive_gradient_clipping([], clip, eps)
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"parameter of shape \(5, 3\) is sparse; build its layer with sparse=False"):
        nl.adaptive_gradient_clipping(table)
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    wrong: list[tuple[Any, str]] = [
        (optimizer, "SGD"),
        (3, "int"),
        (list(layer.named_parameters()), "tuple in a list"),
        (optimizer.param_groups, "dict in a list"),
    ]
    for one, named in wrong:
        said = rf"^Expected a network or parameters, .* got an object of type {named}\.$"
        with pytest.raises(TypeError, match=said):
            nl.adaptive_gradient_clipping(one)
        with pytest.raises(TypeError, match=said):
            nl.adaptive_gradient_clipping(layer, exclude=one)


def test_scalars_of_every_shape_and_type_are_clipped_each_by_itself() -> None:
    shapes, types = ((), (1,), (1, 1, 1)), (torch.float32, torch.float64, torch.bfloat16)
    parameters = [torch.nn.Parameter(torch.full(shape, 0.5, dtype=kind)) for shape in shapes for kind in types]
    for index, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, (-1) ** index * 2.0 ** (index - 6))
    before = [float(one.grad) for one in parameters]
    nl.adaptive_gradient_clipping(parameters, clip=0.25)
    for one, gradient in zip(parameters, before, strict=True):
        assert float(one.grad) == math.copysign(min(abs(gradient), 0.125), gradient)


def two_heads() -> nn.Module:
    """Policy and value read from one trunk."""

    def forward(m: Written, x: Tensor) -> tuple[Tensor, Tensor]:
        h = m.stem(x)
        h = h + m.hidden(F.relu(h))
        return m.policy(h), m.value(h)

    trunk = {"stem": nn.Linear(3, 8), "hidden": nn.Linear(8, 8)}
    return Written(forward, **trunk, policy=nn.Linear(8, 4), value=nn.Linear(8, 1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor, set[str]]] = {
    "nfnet": (lambda: build_model("timm:test_nfnet"), torch.randn(2, 3, 32, 32), {"head.fc.weight", "head.fc.bias"}),
    "two heads": (two_heads, torch.randn(5, 3), {"policy.weight", "policy.bias", "value.weight", "value.bias"}),
    "converted": (
        lambda: nl.convert(build_model("torchvision:resnet18"), "nf_resnet", torch.randn(2, 3, 32, 32)),
        torch.randn(2, 3, 32, 32),
        {"fc.weight", "fc.bias"},
    ),
}


@pytest.mark.parametrize("name", ["two heads", "converted", pytest.param("nfnet", marks=pytest.mark.slow)])
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
