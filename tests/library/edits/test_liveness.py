"""What a conversion breaks is refused: outputs and gradients that are not finite, parameters that die."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import normless as nl
from normless.edits import Edit, Surgery
from normless.errors import UnstableConversionWarning, UnsupportedEditError
from normless.schemes import Scheme


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(F.relu(self.first(self.norm(x))))


def network(blocks: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *(Block() for _ in range(blocks)), nn.LayerNorm(8), nn.Linear(8, 4))


class Change(Edit):
    """An edit of one parameter, as somebody may write."""

    def __init__(self, name: str, change: Callable[[Tensor], object], zeroed: bool = False) -> None:
        self.name, self.change, self.zeroed = name, change, zeroed

    def apply(self, surgery: Surgery) -> None:
        self.change(surgery.parameter(self.name).detach())
        if self.zeroed:
            surgery.zeroed.add(self.name)


def by(*edits: Edit) -> Scheme:
    return Scheme("mine", edits)


BROKEN: dict[str, tuple[str, Callable[[Tensor], object], str]] = {
    "a weight that is not a number": ("1.first.weight", lambda w: w.fill_(torch.nan), "1.first"),
    "an infinite bias": ("2.last.bias", lambda w: w.fill_(torch.inf), "2.last"),
    "a root of nothing": ("0.weight", lambda w: w.sub_(w).div_(0), "0"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_values_that_are_not_finite_are_refused_at_their_module(kind: str) -> None:
    name, change, path = BROKEN[kind]
    with pytest.raises(UnsupportedEditError, match=f"not finite in training mode.* at {path}"):
        nl.convert(network(), by(Change(name, change)), torch.randn(4, 6))


@pytest.mark.parametrize("name", ["0.weight", "2.last.weight", "4.weight"])
def test_what_an_edit_kills_for_good_is_refused(name: str) -> None:
    """A ReLU whose inputs are all negative, a stem of zeros that no scheme knows of."""
    model = network()
    kill = Change("1.first.bias", lambda b: b.fill_(-100))
    with pytest.raises(UnsupportedEditError, match=r"1\.norm\.weight .*no longer have any gradient"):
        nl.convert(model, by(kill), torch.randn(4, 6))
    assert nl.convert(model, by(Change(name, lambda w: w.mul_(0.5))), torch.randn(4, 6)) is not model


def test_two_zeros_on_one_branch_hold_each_other() -> None:
    zeros = [Change(f"1.{name}.weight", lambda w: w.zero_(), zeroed=True) for name in ("first", "last")]
    assert nl.convert(network(), by(zeros[1]), torch.randn(4, 6)) is not None
    with pytest.raises(UnsupportedEditError, match="never get a gradient") as caught:
        nl.convert(network(), by(*zeros, Change("1.first.bias", lambda b: b.zero_())), torch.randn(4, 6))
    assert "1.first.weight" in str(caught.value)


def test_what_was_broken_or_dead_before_is_not_the_edits_fault() -> None:
    model = network()
    with torch.no_grad():
        model[1].first.bias.fill_(-100)
    assert nl.convert(model, "skipinit", torch.randn(4, 6)) is not model
    with torch.no_grad():
        model[4].bias.fill_(torch.nan)
    assert nl.convert(model, "none", torch.randn(4, 6)) is not model


def test_growth_over_depth_is_a_warning() -> None:
    """Without norms a branch of weights times 1e5 grows by itself; that is what a diagnosis is for."""
    model = network(12)
    with torch.no_grad():
        for block in model[1:13]:
            block.last.weight.mul_(1e5)
    with pytest.warns(UnstableConversionWarning, match="grow"):
        nl.convert(model, "none(keep_scale=False)", torch.randn(4, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nl.convert(model, "skipinit", torch.randn(4, 6))


def test_the_check_leaves_no_trace() -> None:
    model, x = network(), torch.randn(4, 6)
    model[4].weight.grad = torch.ones_like(model[4].weight)
    state = torch.get_rng_state()
    converted = nl.convert(model, "fixup", x)
    assert torch.equal(torch.get_rng_state(), state)
    assert not converted[4].weight.any()
    assert not converted[1].last.weight.any()
    assert converted[1].last.multiplier.item() == 1
    assert torch.equal(model[4].weight.grad, torch.ones(4, 8))
    assert all(parameter.grad is None for parameter in converted.parameters())


class Normalized(nn.Module):
    """A branch whose last weight is divided by its own norm, with a gain or without."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.norm, self.first = nn.LayerNorm(8), nn.Linear(8, 8)
        self.weight, self.gain = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.ones(8, 1))
        self.last = parametrizations.weight_norm(nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(self.norm(x)))
        if self.kind == "parametrized":
            return x + self.last(h)
        w = self.weight
        if self.kind == "spectral":
            w = w / torch.linalg.matrix_norm(w, 2)
        elif self.kind == "standardized":
            w = (w - w.mean(1, keepdim=True)) / w.std(1, keepdim=True)
        else:
            w = self.gain * w / w.norm(dim=1, keepdim=True)
        return x + F.linear(h, w)


@pytest.mark.parametrize("kind", ["spectral", "standardized"])
def test_fixup_refuses_weights_whose_scale_does_not_matter(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Normalized(kind), Normalized(kind), nn.Linear(8, 4))
    with pytest.raises(UnsupportedEditError, match=r"1.*divided by its own norm.*skipinit"):
        nl.convert(model, "fixup", torch.randn(4, 6))
    assert nl.convert(model, "skipinit", torch.randn(4, 6))(torch.randn(4, 6)).isfinite().all()


@pytest.mark.parametrize("edit", ["ZeroBranchEnds()", "RescaleBranches(gain=0.1)"])
@pytest.mark.parametrize("kind", ["parametrized", "gain"])
def test_a_gain_is_zeroed_and_scaled_in_the_place_of_its_weight(kind: str, edit: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), Normalized(kind), Normalized(kind), nn.Linear(8, 4)), torch.randn(4, 6)
    converted = nl.convert(model, f"as_written + {edit}", x)
    h = torch.randn(5, 8)
    factor = 0.0 if "Zero" in edit else 0.1 * 2 ** (-1 / 2)
    branch = model[1](h) - h
    if kind == "parametrized":
        inside = F.relu(converted[1].first(converted[1].norm(h)))
        assert torch.allclose(converted[1].last.weight, factor * model[1].last.weight, atol=1e-6)
        assert inside.isfinite().all()
    else:
        assert torch.allclose(converted[1].gain, factor * model[1].gain)
        assert torch.equal(converted[1].weight, model[1].weight)
    if "Zero" in edit:
        assert branch.any()
        assert torch.allclose(converted[1](h), h)


class Factored(nn.Module):
    def __init__(self, factor: float | nn.Parameter | Tensor) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        if isinstance(factor, Tensor) and not isinstance(factor, nn.Parameter):
            self.register_buffer("factor", factor)
        else:
            self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x + self.factor * self.last(F.relu(self.first(self.norm(x))))


def factored(make: Callable[[], float | nn.Parameter | Tensor]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *(Factored(make()) for _ in range(3)), nn.LayerNorm(8), nn.Linear(8, 4))


LEARNED: dict[str, Callable[[], nn.Parameter]] = {
    "a layer scale": lambda: nn.Parameter(torch.full((8,), 1e-6)),
    "a multiplier of zero": lambda: nn.Parameter(torch.zeros(())),
    "a multiplier of one element": lambda: nn.Parameter(torch.full((1,), 1e-4)),
}


@pytest.mark.parametrize(("kind", "scheme"), [*zip(LEARNED, ["fixup", "dyt", "derf"], strict=True)])
def test_tiny_learned_factors_start_at_one(kind: str, scheme: str) -> None:
    model, x = factored(LEARNED[kind]), torch.randn(4, 6)
    converted = nl.convert(model, scheme, x)
    assert all(bool((block.factor == 1).all()) for block in converted[1:4])
    changes = [change for change in nl.plan(model, scheme, x) if "→ 1" in change.what]
    start = model[1].factor.detach().flatten()[0].item()
    assert [change.what for change in changes] == [f"factor of the branch {start:.4g} → 1"] * 3
    assert "1" in changes[0].path


class Alpha(Factored):
    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, self.last(F.relu(self.first(self.norm(x)))), alpha=self.factor)


def test_a_tiny_alpha_of_the_sum_is_such_a_constant() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Alpha(1e-5), Alpha(1e-5), nn.Linear(8, 4))
    with pytest.raises(UnsupportedEditError, match=r"1.*multiplied by 1e-05"):
        nl.convert(model, "fixup", torch.randn(4, 6))


@pytest.mark.parametrize(("make", "scheme"), [(lambda: 1e-5, "fixup"), (lambda: torch.tensor(1e-3), "dyt")])
def test_tiny_constants_are_refused_with_the_block(make: Callable[[], float], scheme: str) -> None:
    with pytest.raises(UnsupportedEditError, match=r"1.*multiplied by 0.001|1.*multiplied by 1e-05"):
        nl.convert(factored(make), scheme, torch.randn(4, 6))
    assert nl.convert(factored(lambda: 0.2), scheme, torch.randn(4, 6)) is not None


def test_trained_and_large_factors_stay() -> None:
    trained = factored(lambda: nn.Parameter(torch.linspace(1e-6, 1e-3, 8)))
    converted = nl.convert(trained, "fixup", torch.randn(4, 6))
    assert torch.equal(converted[1].factor, trained[1].factor)
    large = factored(lambda: nn.Parameter(torch.full((8,), 0.1)))
    assert torch.equal(nl.convert(large, "fixup", torch.randn(4, 6))[1].factor, large[1].factor)


def test_a_multiplier_that_is_zero_and_one_of_skipinit_would_hold_each_other() -> None:
    converted = nl.convert(factored(lambda: nn.Parameter(torch.zeros(8))), "skipinit", torch.randn(4, 6))
    x = torch.randn(4, 6)
    converted(x).square().sum().backward()
    assert all(bool(block.last.multiplier.grad.any()) for block in converted[1:4])


class Noisy(nn.Module):
    """Two blocks, and a parameter whose gradient is `share` of that of others."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.noise = nn.Parameter(torch.ones(()))
        self.register_buffer("share", torch.tensor(share))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x) + self.noise * self.get_buffer("share")


class Silence(Edit):
    """Take the parameter out of the outputs."""

    def apply(self, surgery: Surgery) -> None:
        surgery.model.get_buffer("share").zero_()


def test_a_gradient_of_rounding_errors_was_not_alive() -> None:
    edit, x = Silence(), torch.randn(4, 8)
    assert not nl.convert(Noisy(1e-9), by(edit), x).get_buffer("share")
    with pytest.raises(UnsupportedEditError, match="noise"):
        nl.convert(Noisy(1e-3), by(edit), x)
