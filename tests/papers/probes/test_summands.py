"""The sums over a weight's gradient summands, against every summand made by itself with autograd."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from normless.nn._affine import scalar_affine
from normless.nn._standardized import scaled_std
from normless_papers.probes import summands
from normless_papers.probes.summands import summands_of

CONVOLUTIONS = {False: (nn.Conv1d, nn.Conv2d, nn.Conv3d), True: (nn.ConvTranspose1d, nn.ConvTranspose2d)}
TRANSPOSED = nn.modules.conv._ConvTransposeNd
PADDINGS = ("zeros", "circular", "replicate")


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A convolution of any kind and an input it takes."""
    axes = draw(st.integers(1, 3))
    transposed = axes < 3 and draw(st.booleans())
    groups = draw(st.sampled_from([1, 2, 4]))

    def sides(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes)))

    options: dict[str, Any] = {"kernel_size": sides(1, 3), "stride": sides(1, 3), "padding": sides(0, 1)}
    options |= {"dilation": sides(1, 2), "groups": groups}
    if not transposed:
        options["padding_mode"] = draw(st.sampled_from(PADDINGS))
    module = CONVOLUTIONS[transposed][axes - 1](4, 8, **options)
    least, most = (3, 4) if transposed else (5, 6)
    return module, torch.randn(draw(st.integers(1, 3)), 4, *sides(least, most))


def by_output(module: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of a random loss by the output, and every summand: (B, positions, *weight)."""
    y = module(x)
    gradient, rows = torch.randn_like(y), []
    last = isinstance(module, nn.Linear)
    for example, *position in product(range(len(x)), *map(range, y.shape[1:-1] if last else y.shape[2:])):
        only = torch.zeros_like(y)
        only[(example, *position) if last else (example, slice(None), *position)] = 1
        rows.append(torch.autograd.grad(y, module.weight, gradient * only, retain_graph=True)[0])
    return gradient, torch.stack(rows).reshape(len(x), -1, *module.weight.shape)


def by_input(module: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The same of a transposed convolution, whose summands are told apart by the position of the input."""
    gradient, rows = torch.randn_like(module(x)), []
    for example, *position in product(range(len(x)), *map(range, x.shape[2:])):
        only = torch.zeros_like(x)
        only[(example, slice(None), *position)] = x[(example, slice(None), *position)]
        rows.append(torch.autograd.grad(module(only), module.weight, gradient)[0])
    return gradient, torch.stack(rows).reshape(len(x), -1, *module.weight.shape)


def check(module: nn.Module, x: Tensor, gradient: Tensor, each: Tensor) -> None:
    found = summands_of(module, x, gradient).sums()
    torch.testing.assert_close(found.total, each.sum((0, 1)))
    torch.testing.assert_close(found.sum_abs, each.abs().sum((0, 1)))
    torch.testing.assert_close(found.sum_b_abs_sum_xy, each.sum(1).abs().sum(0))
    torch.testing.assert_close(found.sum_xy_abs_sum_b, each.sum(0).abs().sum(0))


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.integers(0, 2**16), st.sampled_from([1, 50, 2**20]))
def test_sums_of_any_convolution_are_those_of_all_its_summands(
    layer: tuple[nn.Module, Tensor], seed: int, held: int
) -> None:
    torch.manual_seed(seed)
    module, x = layer[0].double(), layer[1].double()
    gradient, each = by_input(module, x) if isinstance(module, TRANSPOSED) else by_output(module, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summands, "_CHUNK", held)
        check(module, x, gradient, each)
    assert torch.all(each.sum((0, 1)).abs() <= each.abs().sum((0, 1)) + 1e-9)


@pytest.mark.parametrize("make", [scalar_affine, scaled_std])
def test_of_a_scalar_layer_it_is_the_weight_as_applied(make: Any) -> None:
    """Multiplier, bias before the layer, standardized weight: all are behind or before what the weight is times."""
    module = make(nn.Conv2d(3, 4, 3, padding=1))
    module.add_part("multiplier", torch.tensor([0.5]))
    module.add_part("input_bias", torch.tensor([0.3]))
    module.double()
    module.before = nn.BatchNorm2d(3).double()
    x = torch.randn(2, 3, 4, 4).double()
    moved = module.before.running_mean.clone()
    y = F.conv2d(module.prepared(x), weight := module.folded()[0].detach().requires_grad_(), padding=1)
    after = module.before.running_mean.clone()
    gradient = torch.randn_like(y)
    found = summands_of(module, x, gradient).sums().total
    torch.testing.assert_close(found, torch.autograd.grad(y, weight, gradient)[0])
    assert not torch.equal(moved, after)
    assert torch.equal(module.before.running_mean, after)
