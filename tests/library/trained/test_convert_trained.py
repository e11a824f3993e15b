"""Conversions of trained networks: what they keep, what they fit, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from trained_networks import Tokens, far, images, post_activation, pre_activation, small, with_statistics

import normless as nl
from normless.edits import EDITS
from normless.edits.trained_form import _DROPPED, _KEEP, _LOSE
from normless.models import resnet_cifar
from normless.nn import ChannelAffine, FrozenBatchNorm, Pointwise
from normless.nn.standardized import ScaledStd

EXACT = ("none", "skipinit", "frozen_batch_norm")


@pytest.mark.parametrize("build", [post_activation, pre_activation])
def test_the_function_is_kept_exactly(build: Callable[[], nn.Module]) -> None:
    model, other = build(), images(7)
    for scheme in EXACT:
        net, report = nl.convert_trained(model, scheme, images())
        assert far(net(other), model(other)) < 1e-5
        assert far(net.train()(other), model(other)) < 1e-5, "no batch statistics"
        assert report.distance[1] < 1e-5
        assert report.agreement == (1, 1)
    assert {name for name, _ in net.named_modules()} >= {"stem", "blocks.0.conv1"}


def test_multipliers_start_at_one_and_everything_trains() -> None:
    net, report = nl.convert_trained(pre_activation(), "skipinit", images())
    multipliers = [value for name, value in net.named_parameters() if name.endswith("multiplier")]
    assert [value.item() for value in multipliers] == [1, 1, 1]
    # The norms before a ReLU that reads a sum, which no layer takes.
    assert sum(isinstance(module, ChannelAffine) for module in net.modules()) == report.counts["affine"] == 4
    F.cross_entropy(net.train()(images(4)), torch.arange(4)).backward()
    assert all(value.grad is not None and value.grad.any() for value in net.parameters())


@pytest.mark.parametrize(
    ("build", "scheme"),
    [
        *((post_activation, scheme) for scheme in ("group_norm(groups=4)", "dyt")),
        *((pre_activation, scheme) for scheme in ("group_norm(groups=1)", "nf_resnet", "derf")),
    ],
)
def test_fits_bring_the_function_back(build: Callable[[], nn.Module], scheme: str) -> None:
    model, other = build(), images(7)
    net, report = nl.convert_trained(model, scheme, images())
    plain = nl.convert(model, scheme, images()).eval()
    assert far(net(other), model(other)) < min(0.4, far(plain(other), model(other)) / 1.5)
    assert report.distance[1] < report.distance[0]
    fitted = [norm for norm in report.norms if norm.outcome == "fitted"]
    assert fitted
    assert all(norm.after is not None and norm.before is not None and norm.after < norm.before for norm in fitted)


def outputs_of(net: nn.Module, x: Tensor, kind: Any) -> dict[str, Tensor]:
    """The outputs of modules, channels first."""
    seen: dict[str, Tensor] = {}
    for path, module in net.named_modules():
        if isinstance(module, kind):
            module.register_forward_hook(lambda *parts, path=path: seen.update({path: parts[2].detach()}))
    net.eval()(x)
    return {path: value.transpose(0, 1).flatten(1).double() for path, value in seen.items()}


@pytest.mark.parametrize("scheme", ["group_norm(groups=2)", "partial_batch_norm(variance=False)"])
def test_each_channel_has_the_mean_and_the_deviation_of_the_norm(scheme: str) -> None:
    model, x = post_activation(), images()
    net, _ = nl.convert_trained(model, scheme, x)
    expected = outputs_of(model, x, nn.BatchNorm2d)
    made = outputs_of(net, x, (nn.GroupNorm, nn.BatchNorm2d))
    assert made.keys() == expected.keys()
    for path, values in expected.items():
        torch.testing.assert_close(made[path].mean(1), values.mean(1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(made[path].std(1), values.std(1), rtol=1e-4, atol=1e-4)


def test_each_standardized_layer_has_the_mean_and_the_deviation_of_the_folded_layer() -> None:
    model, x = pre_activation(), images()
    net, _ = nl.convert_trained(model, "nf_resnet", x)
    folded, _ = nl.fold(model, x)
    expected, made = outputs_of(folded, x, nn.Conv2d), outputs_of(net, x, ScaledStd)
    assert made.keys() == expected.keys()
    for path, values in expected.items():
        torch.testing.assert_close(made[path].mean(1), values.mean(1), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(made[path].std(1), values.std(1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scheme", ["group_norm(groups=4)", "dyt"])
def test_several_batches_are_one_batch_in_parts(scheme: str) -> None:
    model, x = post_activation(), images()
    whole, _ = nl.convert_trained(model, scheme, x)
    parts, _ = nl.convert_trained(model, scheme, (part for part in x.split(9)))
    assert far(parts(x), whole(x)) < 1e-4


def test_labels_of_a_loader_are_left_out() -> None:
    model, x = post_activation(), images()
    loader = DataLoader(TensorDataset(x, torch.zeros(len(x)).long()), batch_size=8)
    nets = [nl.convert_trained(model, "group_norm(groups=4)", own)[0] for own in (loader, [*loader], x.split(8))]
    pair = nl.convert_trained(model, "group_norm(groups=4)", (x, torch.zeros(len(x)).long()))[0]
    assert torch.equal(nets[0](x), nets[1](x))
    assert torch.equal(nets[0](x), nets[2](x))
    assert far(pair(x), nets[0](x)) < 1e-4
    few, _ = nl.convert_trained(model, "group_norm(groups=4)", loader, most_batches=1)
    assert torch.equal(few(x), nl.convert_trained(model, "group_norm(groups=4)", x[:8])[0](x))


def test_layer_norms_become_pointwise_functions() -> None:
    model, tokens = Tokens(), torch.arange(120).reshape(12, 10) * 7 % 11
    net, report = nl.convert_trained(model, "dyt", {"input_ids": tokens})
    assert far(net(tokens), model(tokens)) < min(0.3, report.distance[0] / 2)
    assert net.head.weight is net.embedding.weight
    alphas = {round(own.alpha.item(), 4) for own in net.modules() if isinstance(own, Pointwise)}
    assert len(alphas) == 2


@pytest.mark.parametrize(
    ("scheme", "does"),
    [
        ("fixup", "last layer of every branch to zero"),
        ("zeroinit", "multiplier of every branch at zero"),
        ("skipinit(alpha=0)", "multiplier of every branch at zero"),
        ("skipinit(alpha=1/sqrt(L))", "1/sqrt"),
        ("sqrt2", "residual sum by 0.7071"),
        ("xavier", "draws new weights"),
        ("group_norm + ZeroClassifier()", "classifier to zero"),
        ("nf_resnet(multiplier=True)", "multiplier of every branch at zero"),
    ],
)
def test_schemes_that_lose_the_function_are_refused(scheme: str, does: str) -> None:
    with pytest.raises(nl.UnsupportedEditError) as caught:
        nl.convert_trained(resnet_cifar(8), scheme, images())
    for part in (does, "nl.fold", "nl.remove_norms", "skipinit"):
        assert part in str(caught.value)


def test_what_an_edit_does_to_a_trained_network_is_known() -> None:
    own = {kind for name in EDITS if (kind := EDITS[name]).__module__.startswith("normless.edits")}
    stated = [*_KEEP, *_DROPPED, *_LOSE, nl.edits.RemoveNorms]
    assert len(stated) == len({*stated})
    assert {*stated} == own


def test_norms_without_constant_statistics_are_not_folded() -> None:
    model = small(lambda channels: nn.GroupNorm(2, channels))
    with pytest.raises(nl.UnsupportedEditError, match=r"at 1: .*nl\.remove_norms"):
        nl.convert_trained(model, "skipinit", images())


def test_norms_without_running_statistics_get_those_of_the_batches() -> None:
    model, x = small(lambda channels: nn.BatchNorm2d(channels, track_running_stats=False)).eval(), images()
    for scheme in ("none", "frozen_batch_norm"):
        net, report = nl.convert_trained(model, scheme, x)
        assert far(net(x), model(x)) < 1e-5
        assert far(net(x[:1]), net(x)[:1]) < 1e-5
        assert all("statistics of the calibration batches" in str(norm) for norm in report.norms)
    in_parts, _ = nl.convert_trained(model, "none", [x[:10], x[10:]])
    assert far(in_parts(x), model(x)) < 0.1


def test_constant_channels_stay_finite() -> None:
    model = small()
    with torch.no_grad():
        model.get_submodule("0").get_parameter("weight")[[1, 5]] = 0
    with_statistics(model)
    for scheme in ("none", "group_norm(groups=2)", "nf_resnet", "dyt"):
        net, report = nl.convert_trained(model, scheme, images())
        assert all(torch.isfinite(value).all() for value in (*net.parameters(), *net.buffers()))
        assert report.distance[1] < 0.5
    assert "2 of its channels are constant" in str(report)


def test_frozen_norms_of_detectors_become_fitted_group_norms() -> None:
    source, x = with_statistics(small()), images()
    model = nl.convert(source, "frozen_batch_norm", x)
    del model.normless_scheme
    net, report = nl.convert_trained(model, "group_norm(groups=2)", x)
    assert not any(isinstance(module, FrozenBatchNorm) for module in net.modules())
    assert report.distance[1] < 0.3 < report.distance[0]


class Shared(nn.Module):
    """One norm after two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.norm(self.first(F.relu(x)))
        return (x + self.norm(self.second(F.relu(x)))).mean((2, 3))


def test_a_norm_at_two_places_is_fitted_to_both() -> None:
    model, x = with_statistics(Shared()), images()
    net, report = nl.convert_trained(model, "none", x)
    assert isinstance(net.norm, ChannelAffine)
    assert far(net(x), model(x)) < 1e-5
    net, report = nl.convert_trained(model, "group_norm(groups=2)", x)
    assert report.distance[1] < report.distance[0] / 2


class Activated(nn.BatchNorm2d):
    """A norm with an activation in its code."""

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(super().forward(x), 0.1)


@pytest.mark.parametrize(
    "norm",
    [Activated, lambda channels: nn.BatchNorm2d(channels, affine=False), nn.SyncBatchNorm],
    ids=["fused", "without affine", "synchronized"],
)
def test_other_batch_norms_are_fitted_too(norm: Callable[[int], nn.Module]) -> None:
    # A synchronized norm trains on a card only, and so has the statistics of its start here.
    model = small(norm).eval() if norm is nn.SyncBatchNorm else with_statistics(small(norm))
    x = images()
    assert far(nl.convert_trained(model, "skipinit", x)[0](x), model(x)) < 1e-5
    for scheme in ("group_norm(groups=2)", "dyt"):
        net, report = nl.convert_trained(model, scheme, x)
        assert report.counts == {"fitted": 3}
        assert report.distance[1] < report.distance[0] / 2
        assert all(value.requires_grad for value in net.parameters())


def test_a_part_of_a_network() -> None:
    model, x = post_activation(), images()
    for scheme in ("none", "group_norm(groups=4)"):
        net, report = nl.convert_trained(model, scheme, x, only="blocks.1")
        kept = [path for path, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)]
        assert kept
        assert not any(path.startswith("blocks.1") for path in kept)
        assert {norm.path.rpartition(".")[0] for norm in report.norms} == {"blocks.1"}
        assert "only" in net.normless_scheme


def test_the_original_and_the_random_state_are_unchanged() -> None:
    model, x = post_activation(), images()
    model.get_submodule("stem").requires_grad_(False)
    model.get_submodule("blocks.0.norm1").requires_grad_(False)
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    for scheme in ("none", "group_norm(groups=4)", "dyt"):
        net, _ = nl.convert_trained(model, scheme, x)
        assert not net.training
        assert not net.stem.weight.requires_grad
    assert not nl.convert_trained(model, "group_norm", x)[0].blocks[0].norm1.weight.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in net.modules())


def test_norms_that_alone_are_trained_stay_trained(tmp_path: Path) -> None:
    model, x = with_statistics(small()), images()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.requires_grad_(False)
    net, report = nl.convert_trained(model, "none", x)
    assert report.counts == {"affine": 3}
    assert all(own.scale.requires_grad for own in net.modules() if isinstance(own, ChannelAffine))
    assert far(net(x), model(x)) < 1e-5
    nl.save(net, tmp_path)
    assert torch.equal(nl.load(tmp_path, small())(x), net(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model, x = with_statistics(small()).to(dtype), images().to(dtype)
    least = {torch.float64: 1e-12, torch.bfloat16: 0.02}[dtype]
    for scheme in ("none", "frozen_batch_norm", "group_norm(groups=2)"):
        net, _ = nl.convert_trained(model, scheme, x)
        assert {value.dtype for value in net.parameters()} == {dtype}
        assert far(net(x), model(x)) < (least if "group" not in scheme else 0.3)


@pytest.mark.parametrize(
    "scheme",
    [
        "skipinit",
        "group_norm(groups=4)",
        *(pytest.param(own, marks=pytest.mark.slow) for own in ("nf_resnet", "dyt")),
    ],
)
def test_saved_loaded_and_exported(scheme: str, tmp_path: Path) -> None:
    model, x = pre_activation(), images(3)
    net, _ = nl.convert_trained(model, scheme, images())
    nl.save(net, tmp_path, "normless:wide_resnet(depth=10, width=1)", example_inputs=x)
    same = nl.load(tmp_path)
    assert torch.equal(same(x), net(x))
    assert nl.Scheme is type(nl.scheme(net.normless_scheme))
    program = torch.export.export(net, (x,))
    torch.testing.assert_close(program.module()(x), net(x))


def test_a_scheme_text_says_it() -> None:
    model, x = post_activation(), images()
    net, report = nl.convert_trained(model, "group_norm(groups=4)", x)
    said: Any = nl.convert(model, "trained(scheme='group_norm(groups=4)')", x)
    assert said.normless_scheme == net.normless_scheme
    assert torch.equal(said(x), net(x))
    assert said.normless.report == report
    assert nl.plan(model, net.normless_scheme, x) == said.normless.plan
    for part in ("fitted", "→", "blocks.0.norm1"):
        assert part in str(report)


def test_wrong_batches_are_refused() -> None:
    model = resnet_cifar(8)
    with pytest.raises(ValueError, match="got none"):
        nl.convert_trained(model, "none", [])
    with pytest.raises(ValueError, match="most_batches"):
        nl.convert_trained(model, "none", images(), most_batches=0)
    with pytest.raises(TypeError, match="int"):
        nl.convert_trained(model, "none", 3)
    with pytest.raises(nl.UnsupportedEditError, match="not finite"):
        nl.convert_trained(model.eval(), "group_norm", images() * float("inf"))
