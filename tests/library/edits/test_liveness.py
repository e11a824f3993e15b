"""What a conversion breaks is refused, what was broken before is not; factors and gains that hold branches shut."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from edit_helpers import close
from errors.edits import Change, block, branches, written
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import normless as nl
from normless.errors import UnstableConversionWarning

X = torch.randn(4, 8)


def test_edits_that_leave_all_alive_are_taken() -> None:
    for name in ("0_weight", "2_g_weight", "4_weight"):
        nl.convert(branches(), nl.Scheme("Mine", (Change(**{name: 0.5}),)), X)
    nl.convert(branches(), nl.Scheme("Mine", (Change(**{"1_g_weight": 0}),)), X)


def test_what_was_broken_or_dead_before_is_not_the_edits_fault() -> None:
    model = branches()
    nn.init.constant_(model.get_parameter("1.f.bias"), -100)
    assert nl.convert(model, "skipinit", X) is not model
    nn.init.constant_(model.get_parameter("4.bias"), torch.nan)
    assert nl.convert(model, "none", X) is not model


def test_growth_over_depth_is_a_warning() -> None:
    """Without norms a branch of weights times 1e5 grows by itself; that is what a diagnosis is for."""
    model = branches(*(block() for _ in range(12)))
    with torch.no_grad():
        for one in model[1:13]:
            one.g.weight.mul_(1e5)  # type: ignore[union-attr, operator]
    with pytest.warns(UnstableConversionWarning, match="grow"):
        nl.convert(model, "none(keep_scale=False)", X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nl.convert(model, "skipinit", X)


def test_a_function_that_saturates_where_branches_are_wide_open_is_not_dead() -> None:
    """With every multiplier at 1 the signal grows by 5 per block, and a softmax of it has no gradient in float32."""
    model = branches(*(block() for _ in range(12)), written(lambda m, x: F.softmax(m.f(x), -1), "f"))
    with torch.no_grad():
        for one in model[1:13]:
            one.g.weight.mul_(20)  # type: ignore[union-attr, operator]
    net = nl.convert(model, "skipinit(keep_scale=False)", X)
    net(X)[:, 0].sum().backward()
    assert net[13].f.weight.grad.any()  # type: ignore[union-attr]
    with pytest.raises(nl.errors.UnsupportedEditError, match="no longer have any gradient"):
        nl.convert(model, "skipinit(alpha=1, keep_scale=False)", X)


def with_gain(kind: str) -> nn.Module:
    """x + g(f(x)), the last weight divided by its own norm times a gain, by torch or in forward code."""
    if kind == "parametrized":
        return block(g=parametrizations.weight_norm(nn.Linear(8, 8)))
    gain = nn.Parameter(torch.ones(8, 1))
    forward = lambda m, x: x + F.linear(F.relu(m.f(x)), m.gain * m.g.weight / m.g.weight.norm(dim=1, keepdim=True))  # noqa: E731
    return written(forward, "f g", gain=gain)


@pytest.mark.parametrize(
    ("edit", "factor"), [("ZeroBranchEnds()", 0.0), ("RescaleBranches(gain=0.1)", 0.1 * 2**-0.5)]
)
@pytest.mark.parametrize("kind", ["parametrized", "gain"])
def test_a_gain_is_zeroed_and_scaled_in_the_place_of_its_weight(kind: str, edit: str, factor: float) -> None:
    model: Any = branches(with_gain(kind), with_gain(kind))
    net: Any = nl.convert(model, f"as_written + {edit}", X)
    if kind == "parametrized":
        close(net[1].g.weight, factor * model[1].g.weight)
    else:
        close(net[1].gain.detach(), factor * model[1].gain.detach())
        assert torch.equal(net[1].g.weight, model[1].g.weight)
    if not factor:
        assert (model[1](X) - X).any()
        close(net[1](X) - X, torch.zeros(4, 8) if kind == "gain" else net[1].g.bias.expand(4, 8))


def factored(make: Callable[[], Tensor]) -> Any:
    """Blocks whose branch is multiplied by a learned factor."""

    def one() -> nn.Module:
        forward = lambda m, x: x + m.factor * m.g(F.relu(m.f(m.norm(x))))  # noqa: E731
        return written(forward, "f g", norm=nn.LayerNorm(8), factor=nn.Parameter(make()))

    return branches(one(), one(), one())


LEARNED: list[tuple[Callable[[], Tensor], str]] = [
    (lambda: torch.full((8,), 1e-6), "fixup"),
    (lambda: torch.zeros(()), "dyt"),
    (lambda: torch.full((1,), 1e-4), "derf"),
    (lambda: torch.zeros(8), "skipinit"),
]


@pytest.mark.parametrize(("make", "scheme"), LEARNED, ids=[scheme for _, scheme in LEARNED])
def test_tiny_learned_factors_start_at_one(make: Callable[[], Tensor], scheme: str) -> None:
    """A factor of zero and a multiplier of zero would hold each other."""
    model = factored(make)
    net = nl.convert(model, scheme, X)
    assert all(bool((one.factor == 1).all()) for one in net[1:4])
    said = [change.what for change in nl.plan(model, scheme, X) if "→ 1" in change.what]
    assert said == [f"factor of the branch {make().flatten()[0].item():.4g} → 1"] * 3
    net(X).square().sum().backward()
    multipliers = [one for name, one in net.named_parameters() if name.endswith("multiplier")]
    assert all(one.grad.any() for one in multipliers) or scheme == "fixup"


def test_trained_and_large_factors_stay() -> None:
    for make in (lambda: torch.linspace(1e-6, 1e-3, 8), lambda: torch.full((8,), 0.1)):
        assert torch.equal(nl.convert(factored(make), "fixup", X)[1].factor, make())  # type: ignore[no-untyped-call]


def test_passes_that_verify_keep_the_parameters_that_forward_code_writes() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            m.average.mul_(0.9).add_(0.1 * m.f.weight.mean(0))
        h = m.f(x)
        return h + m.g(m.norm(h))

    average = nn.Parameter(torch.ones(8), requires_grad=False)
    model = written(forward, "f g", average=average, norm=nn.LayerNorm(8))
    assert torch.equal(nl.convert(model, "skipinit", X).get_parameter("average"), torch.ones(8))
    assert torch.equal(average, torch.ones(8))
