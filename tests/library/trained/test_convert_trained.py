"""Conversions of trained networks: what they keep, what they fit, and what stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_networks import far, images, post_activation, pre_activation, small, with_statistics

import normless as nl
from normless.nn import FrozenAffine
from normless.nn._standardized import ScaledStd

GROUPS, HALVES = "group_norm(groups=4)", "group_norm(groups=2)"


@pytest.mark.parametrize("build", [post_activation, pre_activation])
@pytest.mark.parametrize("scheme", ["skipinit", "frozen_batch_norm"])
def test_the_function_is_kept_exactly(build: Callable[[], nn.Module], scheme: str) -> None:
    model, other = build(), images(7)
    net, report = nl.convert_trained(model, scheme, images())
    for training in (False, True):
        assert far(net.train(training)(other), model(other)) < 1e-5, "no batch statistics"
    assert report.distance[1] < 1e-5
    assert report.agreement == (1, 1)
    assert {name for name, _ in net.named_modules()} >= {"stem", "blocks.0.conv1"}


FITS = [(post_activation, GROUPS), (post_activation, "dyt"), (pre_activation, "group_norm(groups=1)")]
FITS += [(pre_activation, "nf_resnet"), (pre_activation, "derf")]


@pytest.mark.parametrize(("build", "scheme"), FITS)
def test_fits_bring_the_function_back_from_one_batch_or_its_parts(build: Callable[[], Any], scheme: str) -> None:
    model, other, x = build(), images(7), images()
    net, report = nl.convert_trained(model, scheme, x)
    plain = nl.convert(model, scheme, x).eval()
    assert far(net(other), model(other)) < min(0.4, far(plain(other), model(other)) / 1.5)
    assert report.distance[1] < report.distance[0]
    fitted = [norm for norm in report.norms if norm.outcome == "fitted"]
    assert fitted
    assert all(norm.after is not None and norm.before is not None and norm.after < norm.before for norm in fitted)
    if build is post_activation:
        parts, _ = nl.convert_trained(model, scheme, (part for part in x.split(9)))  # type: ignore[no-untyped-call]
        assert far(parts(x), net(x)) < 1e-4


def moments_of(net: nn.Module, x: Tensor, kind: Any) -> dict[str, Tensor]:
    """Mean and deviation of each channel that modules make."""
    seen: dict[str, Tensor] = {}

    def note(path: str, y: Tensor) -> None:
        y = y.detach().transpose(0, 1).flatten(1).double()
        seen[path] = torch.stack([y.mean(1), y.std(1)])

    for path, module in net.named_modules():
        if isinstance(module, kind):
            module.register_forward_hook(lambda _, __, y, path=path: note(path, y))
    net.eval()(x)
    return seen


OF_NORMS = [(post_activation, HALVES), (post_activation, "partial_batch_norm(variance=False)")]


@pytest.mark.parametrize(("build", "scheme"), [*OF_NORMS, (pre_activation, "nf_resnet")])
def test_each_channel_has_the_mean_and_the_deviation_of_the_norm(build: Callable[[], Any], scheme: str) -> None:
    """Of the folded layer, where a standardized one takes its place."""
    model, x = build(), images()
    net, _ = nl.convert_trained(model, scheme, x)
    if scheme == "nf_resnet":
        expected, made = moments_of(nl.fold(model, x)[0], x, nn.Conv2d), moments_of(net, x, ScaledStd)
    else:
        expected, made = moments_of(model, x, nn.BatchNorm2d), moments_of(net, x, (nn.GroupNorm, nn.BatchNorm2d))
    assert made.keys() == expected.keys()
    for path, values in expected.items():
        tolerance = 1e-3 if scheme == "nf_resnet" else 1e-4
        torch.testing.assert_close(made[path], values, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("scheme", ["none", GROUPS])
def test_a_part_of_a_network(scheme: str) -> None:
    net, report = nl.convert_trained(post_activation(), scheme, images(), only="blocks.1")
    kept = [path for path, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert kept
    assert not any(path.startswith("blocks.1") for path in kept)
    assert {norm.path.rpartition(".")[0] for norm in report.norms} == {"blocks.1"}
    assert "only" in net.normless_scheme


@pytest.mark.parametrize("scheme", ["none", GROUPS, "dyt"])
def test_the_original_the_random_state_and_what_is_trained_are_unchanged(scheme: str, tmp_path: Path) -> None:
    model, x = post_activation(), images()
    model.stem.requires_grad_(False)
    model.blocks[0].norm1.requires_grad_(False)
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    net: Any = nl.convert_trained(model, scheme, x)[0]
    assert not net.training
    assert not net.stem.weight.requires_grad
    assert scheme != GROUPS or not net.blocks[0].norm1.weight.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in net.modules())
    if scheme != "none":
        return
    # Norms that alone are trained stay trained.
    model = with_statistics(small())
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.requires_grad_(False)
    net, report = nl.convert_trained(model, "none", x)
    assert report.counts == {"affine": 3}
    assert all(own.scale.requires_grad for own in net.modules() if isinstance(own, FrozenAffine))
    nl.save(net, tmp_path)
    assert torch.equal(nl.load(tmp_path, small())(x), net(x))


class Doubling(nn.Module):
    """A network that writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.net = post_activation()

    def forward(self, x: Tensor) -> Any:
        return self.net(x.mul_(2))


def test_batches_that_forward_code_writes_into_are_unchanged() -> None:
    x = images()
    nl.convert_trained(Doubling(), GROUPS, x)
    assert torch.equal(x, images())


@pytest.mark.parametrize("scheme", ["skipinit", GROUPS])
def test_saved_loaded_exported_and_said_by_a_text(scheme: str, tmp_path: Path) -> None:
    model, x = pre_activation(), images()
    net: Any
    net, report = nl.convert_trained(model, scheme, x)
    nl.save(net, tmp_path, "normless:wide_resnet(depth=10, width=1)", example_inputs=x[:3])
    assert torch.equal(nl.load(tmp_path)(x), net(x))
    torch.testing.assert_close(torch.export.export(net, (x[:3],)).module()(x[:3]), net(x[:3]))
    said: Any = nl.convert(model, f"trained(scheme={scheme!r})", x)
    assert said.normless_scheme == net.normless_scheme
    assert torch.equal(said(x), net(x))
    assert said.normless.report == report
    assert nl.plan(model, net.normless_scheme, x) == said.normless.plan
    assert "blocks.0.norm1" in str(report)
    assert scheme != GROUPS or all(part in str(report) for part in ("fitted", "→"))
