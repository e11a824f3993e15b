"""γ and β of norms that stay, TorchScript beside folds, and passes in training that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fold_helpers import Net, fate, randomize
from torch import Tensor, nn
from written_networks import Written

import normless as nl

VECTORS, IMAGES = torch.randn(3, 5, 8).double(), torch.randn(3, 4, 7, 6).double()


@torch.no_grad()
def drawn(model: nn.Module) -> Any:
    """A network in double precision and evaluation, every vector of it drawn at random."""
    for parameter in model.double().eval().parameters():
        if parameter.dim() < 2:
            parameter.normal_(1, 0.5)
    return randomize(model)


class Gemma(nn.Module):
    """x / rms · (1 + w)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


def two_readers(m: Any, x: Tensor) -> Tensor:
    y = m.norm(x.sin())
    return m.layer(y).relu() + m.other(y.flatten(0, 1)).unflatten(0, x.shape[:2])


READ: dict[str, tuple[nn.Module, Callable[[Any, Tensor], Tensor], str]] = {
    "layer norm": (nn.LayerNorm(8), two_readers, "kept: γ and β folded into layer, other after it"),
    "without β": (nn.LayerNorm(8, bias=False), two_readers, "kept: γ and β folded into layer, other after it"),
    "RMS norm": (nn.RMSNorm(8), two_readers, "kept: γ and β folded into layer, other after it"),
    "1 + w": (Gemma(), two_readers, "kept: γ and β folded into layer, other after it"),
    "returned": (nn.LayerNorm(8), lambda m, x: m.norm(m.layer(x)), "stay, since it is the network's output"),
    "a residual sum": (nn.LayerNorm(8), lambda m, x: m.layer(y := m.norm(x)) + y, "γ and β stay, since add reads it"),
    "without either": (nn.LayerNorm(8, elementwise_affine=False), two_readers, "kept: it normalizes each example"),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_gamma_and_beta_go_into_all_readers_of_a_norm_that_stays(case: str) -> None:
    norm, code, said = READ[case]
    net = drawn(Written(code, norm=norm, layer=nn.Linear(8, 8), other=nn.Linear(8, 8, bias=False)))
    before = [parameter.clone() for parameter in net.parameters()]
    new, report = nl.fold(net, VECTORS, gammas=True)
    assert fate(report).startswith(said) or said in fate(report)
    torch.testing.assert_close(new(VECTORS), net(VECTORS), rtol=1e-10, atol=1e-10)
    assert type(new.norm) is type(norm)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))
    if "folded" in said:
        neutral = {"weight": 0.0 if case == "1 + w" else 1.0, "bias": 0.0}
        assert all((value == neutral[name]).all() for name, value in new.norm.named_parameters())
    # Without `gammas` such a norm stays as it is.
    assert torch.equal(nl.fold(net, VECTORS)[0](VECTORS), net(VECTORS))


def test_beta_stays_in_a_norm_before_a_padded_border_which_gamma_passes() -> None:
    norm = nn.GroupNorm(2, 4)
    for padding, said in ((1, "kept: γ folded into layer after it: β stays"), (0, "kept: γ and β folded into layer")):
        net = drawn(Written(lambda m, x: m.layer(m.norm(x)), norm=norm, layer=nn.Conv2d(4, 3, 3, padding=padding)))
        new, report = nl.fold(net, IMAGES, gammas=True)
        assert fate(report).startswith(said)
        torch.testing.assert_close(new(IMAGES), net(IMAGES), rtol=1e-10, atol=1e-10)
        assert (new.norm.weight == 1).all()
        torch.testing.assert_close(
            new.norm.bias, net.norm.bias / net.norm.weight if padding else torch.zeros(4).double()
        )


def test_means_and_pools_of_positions_pass_affine_maps_on() -> None:
    """An average of whole windows and the affine map of each channel commute; a padded one sees zeros."""
    for pool, said in ((nn.AvgPool2d(2), "folded into last after it"), (nn.AvgPool2d(3, padding=1), "avg_pool2d")):
        net = Net(
            lambda m, x: m.last(m.pool(m.norm(x.sin()))), norm=nn.BatchNorm2d(4), pool=pool, last=nn.Conv2d(4, 2, 1)
        )
        new, report = nl.fold(net.eval(), IMAGES)
        assert said in fate(report)
        torch.testing.assert_close(new(IMAGES), net(IMAGES), rtol=1e-10, atol=1e-10)


def scripted(script: Callable[[nn.Module], nn.Module]) -> nn.Module:
    inner = randomize(nn.Sequential(nn.ReLU(), nn.Conv2d(6, 5, 1), nn.BatchNorm2d(5)).double().eval())
    parts = {"layer": nn.Conv2d(4, 6, 3), "norm": nn.BatchNorm2d(6), "last": nn.Conv2d(5, 2, 1)}
    net = Net(lambda m, x: m.norm2(m.last(m.inner(m.norm(m.layer(x))))), **parts, norm2=nn.BatchNorm2d(2)).eval()
    net.inner = script(inner)
    return net


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:inner is TorchScript")
@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_norms_beside_a_torchscript_child_are_folded_and_frozen(kind: str) -> None:
    example = torch.randn(1, 6, 5, 4).double()
    net = scripted(torch.jit.script if kind == "scripted" else lambda inner: torch.jit.trace(inner, example))  # type: ignore[no-untyped-call]
    expected = net(IMAGES)
    with pytest.warns(nl.errors.EvaluationOnlyWarning, match="inner is TorchScript, whose norms stay"):
        new, report = nl.fold(net, IMAGES)
    assert (fate(report), fate(report, "norm2")) == ("folded into layer before it", "folded into last before it")
    assert fate(report, "inner.2").startswith("kept: it is TorchScript")
    for made in (new, nl.freeze(net), nl.fuse_for_inference(net, IMAGES, allow_partial=True)):
        torch.testing.assert_close(made(IMAGES), expected, rtol=1e-10, atol=1e-10)
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in new.parameters())


def with_targets(m: Any, x: Tensor) -> Tensor:
    if m.training:
        raise ValueError("In training mode, targets should be passed")
    return m.norm(m.layer(x)).relu()


def test_a_network_that_needs_targets_in_training_is_folded_for_evaluation() -> None:
    net = Net(with_targets, layer=nn.Conv2d(4, 6, 3), norm=nn.BatchNorm2d(6)).eval()
    with pytest.warns(
        nl.errors.EvaluationOnlyWarning, match="in training cannot be followed.*targets should be passed"
    ):
        new, report = nl.fold(net, IMAGES)
    assert fate(report) == "folded into layer before it"
    torch.testing.assert_close(new(IMAGES), net(IMAGES), rtol=1e-10, atol=1e-10)
