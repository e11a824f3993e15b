"""Instance, group, layer, RMS and batch norms in place of each other; the oracles are torch's functions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl

IMAGES, VECTORS, TOKENS = torch.randn(4, 3, 8, 8), torch.randn(6, 8), torch.randn(4, 5, 8)


def drawn(norm: nn.Module) -> nn.Module:
    """A norm with γ, β and ε of its own."""
    norm.eps = 0.1  # type: ignore[assignment]
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 1, 0.5)
    return norm


class Gemma(nn.Module):
    """x / rms · (1 + w)."""

    def __init__(self) -> None:
        super().__init__()
        self.eps, self.weight = 1e-6, nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


OF_IMAGES: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(8),
    "instance": lambda: nn.InstanceNorm2d(8, affine=True),
    "plain instance": lambda: nn.InstanceNorm2d(8),
    "group": lambda: nn.GroupNorm(2, 8),
}
Function = Callable[[Tensor, Any, Any, float], Tensor]
ON_IMAGES: dict[str, Function] = {
    "batch_norm(replace=True)": lambda x, w, b, eps: F.batch_norm(x, None, None, w, b, True, 0.1, eps),
    "instance_norm": lambda x, w, b, eps: F.instance_norm(x, None, None, w, b, True, 0.1, eps),
    "group_norm(groups=4)": lambda x, w, b, eps: F.group_norm(x, 4, w, b, eps),
    "layer_norm(replace=True)": lambda x, w, b, eps: F.group_norm(x, 1, w, b, eps),
}


@pytest.mark.parametrize("scheme", ON_IMAGES)
@pytest.mark.parametrize("before", OF_IMAGES)
def test_norms_of_images_in_place_of_each_other(before: str, scheme: str) -> None:
    norm = drawn(OF_IMAGES[before]())
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
    model[4].requires_grad_(False)
    net: Any = nl.convert(model, scheme, IMAGES)
    if scheme.startswith(before.split()[-1]):
        assert net.normless.remarks[0].startswith("nothing changes, since its norms are so already")
        return
    x = torch.randn(5, 8, 3, 4)
    weight, bias = norm.weight, norm.bias
    torch.testing.assert_close(net[1].train()(x), ON_IMAGES[scheme](x, weight, bias, 0.1))
    assert (net[1].weight is None) == (weight is None)
    assert weight is None or net[1].weight is not weight


OF_FEATURES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "layer": (lambda: nn.LayerNorm(8), TOKENS),
    "RMS": (lambda: nn.RMSNorm(8), TOKENS),
    "1 + w": (Gemma, TOKENS),
    "batch, of vectors": (lambda: nn.BatchNorm1d(8), VECTORS),
}


@pytest.mark.parametrize("scheme", ["layer_norm(replace=True)", "rms_norm"])
@pytest.mark.parametrize("before", OF_FEATURES)
def test_norms_of_features_in_place_of_each_other(before: str, scheme: str) -> None:
    build, x = OF_FEATURES[before]
    norm: Any = drawn(build())
    net: Any = nl.convert(nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 5)), scheme, x)
    gamma = norm.weight + 1 if before == "1 + w" else norm.weight
    if scheme == "rms_norm":
        expected = F.rms_norm(x, (8,), gamma, 0.1)
    else:
        expected = F.layer_norm(x, (8,), gamma, getattr(norm, "bias", None), 0.1)
    torch.testing.assert_close(net[1](x), expected)


REFUSED = [
    (nn.LayerNorm(8), TOKENS, "batch_norm(replace=True)", "channels are the last axis, where batch norm would mix"),
    (nn.RMSNorm(8), TOKENS, "instance_norm", "channels are the last axis"),
    (nn.LayerNorm((5, 8)), TOKENS, "rms_norm", "γ has an element for each of 2 axes"),
    (nn.BatchNorm1d(8), VECTORS, "instance_norm", "no positions over which"),
]


@pytest.mark.parametrize(("norm", "x", "scheme", "why"), REFUSED)
def test_a_direction_without_a_meaning_is_refused(norm: nn.Module, x: Tensor, scheme: str, why: str) -> None:
    with pytest.raises(nl.errors.UnsupportedEditError, match=rf"at 1, a.*{why}"):
        nl.convert(nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 5)), scheme, x)


def test_statistics_over_positions_have_no_counterpart_in_an_rms_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU())
    with pytest.raises(nl.errors.UnsupportedEditError, match=r"at 1, a.*: it takes its statistics over positions"):
        nl.convert(model, "rms_norm", IMAGES)


def test_a_scheme_that_changes_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def said(norm: nn.Module, scheme: str) -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "normless"):
            nl.convert(nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU()), scheme, IMAGES)
        return caplog.text

    missing = said(nn.InstanceNorm2d(8), "batch_norm")
    assert (
        "nothing changes, since it has no batch norm (1 is an instance norm 8); batch_norm(replace=True)" in missing
    )
    assert "it has no batch norm;" in said(nn.Identity(), "batch_norm")
    assert "nothing changes" in said(nn.BatchNorm2d(8), "plain_batch_norm")
    assert said(nn.BatchNorm2d(8), "batch_norm") == ""
    assert said(nn.InstanceNorm2d(8), "group_norm(groups=2)") == ""


def test_a_trained_network_of_instance_norms_is_fitted_to_group_norms() -> None:
    torch.manual_seed(0)
    norms = (drawn(nn.InstanceNorm2d(8, affine=True)) for _ in range(2))
    parts = [nn.Conv2d(3, 8, 3), next(norms), nn.ReLU(), nn.Conv2d(8, 8, 3), next(norms), nn.ReLU()]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    net, report = nl.convert_trained(model, "group_norm(groups=2)", torch.randn(24, 3, 10, 10))
    assert report.counts == {"fitted": 2}
    assert report.distance[1] < report.distance[0]
    assert sum(isinstance(module, nn.GroupNorm) for module in net.modules()) == 2
    with pytest.raises(nl.errors.UnsupportedEditError, match="running statistics that nothing measured"):
        nl.convert_trained(model, "batch_norm(replace=True)", IMAGES)
