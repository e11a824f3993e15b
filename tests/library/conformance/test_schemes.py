"""Every scheme on every reference network: what a conversion promises, one property a test."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from conformance_cases import (
    CONVOLUTIONAL,
    ELSEWHERE,
    IDENTITY_AT_START,
    INDEPENDENT,
    NETWORKS,
    ONE_OF_EACH,
    PAIRS,
    REFUSALS,
    SCALARS,
    SCHEME_TEXTS,
    SMALLEST,
    WITHOUT_NORMS,
    converted,
    gets_no_gradient,
    perturbed,
)
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import resnet_cifar
from normless.models.resnets import ResNetCifar
from normless.nn import ResidualSum
from normless.residual import traced_map
from normless.spec import parse_call

NORM_TYPES = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
WITH_ARGUMENTS = [text for text in SCHEME_TEXTS if "(" in text]
SMALL_PAIRS = [pair for pair in PAIRS if pair[1] in SMALLEST]
SLOW = {
    pair
    for pair in [*PAIRS, *REFUSALS]
    if pair not in ONE_OF_EACH and (pair[1] not in SMALLEST or pair[0] in WITH_ARGUMENTS)
}


def pairs(chosen: list[tuple[str, str]], slow: Callable[[str, str], bool] | None = None) -> pytest.MarkDecorator:
    """One test a pair; those of the larger networks and of further arguments of a scheme are slow, and those told."""
    return pytest.mark.parametrize(
        ("scheme", "network"),
        [
            pytest.param(
                *pair, id="-".join(pair), marks=pytest.mark.slow if pair in SLOW or (slow and slow(*pair)) else ()
            )
            for pair in chosen
        ],
    )


def further(scheme: str, network: str) -> bool:
    """Whether another test of the scheme has the same modules."""
    return "(" in scheme or (scheme, network) not in ONE_OF_EACH


def targets(size: int) -> Tensor:
    return torch.arange(size) % 10


def gradients(model: nn.Module, x: Tensor, y: Tensor, parts: int = 1) -> dict[str, Tensor]:
    """Gradients of the mean loss over the batch, accumulated over `parts` micro-batches."""
    model.zero_grad()
    for inputs, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
        (F.cross_entropy(model(inputs), labels) / parts).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_the_suite_covers_every_scheme() -> None:
    assert {parse_call(text)[0] for text in SCHEME_TEXTS} == set(nl.SCHEMES) - ELSEWHERE
    assert len(set(SCHEME_TEXTS)) == len(SCHEME_TEXTS)


@pairs(
    [pair for pair in PAIRS if pair[1] == "cifar_8" and pair[0] not in WITH_ARGUMENTS],
    slow=lambda scheme, _: scheme not in ("fixup", "nf_resnet", "only_top_norm", "dyt"),
)
def test_to_convert_takes_steps_in_proportion_to_the_number_of_layers(
    scheme: str, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A walk over all modules for each of them would make ten thousand layers take hours.
    walk, met = nn.Module.named_modules, [0]

    def counted(self: nn.Module, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        for found in walk(self, *args, **kwargs):
            met[-1] += isinstance(self, ResNetCifar)
            yield found

    monkeypatch.setattr(nn.Module, "named_modules", counted)
    for depth in (8, 14, 20):
        met.append(0)
        nl.convert(resnet_cifar(depth), scheme, NETWORKS[network].batch())
    assert met[3] - met[2] == met[2] - met[1] > 0


@pairs(list(REFUSALS))
def test_refusals(scheme: str, network: str) -> None:
    with pytest.raises(nl.UnsupportedEditError, match=REFUSALS[scheme, network]) as caught:
        converted(scheme, network)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    "text",
    [
        "partial_batch_norm(mean=maybe)",
        "fixup(biases=nope)",
        "layer_scale(init=small)",
        "skipinit(alpha=nan)",
        "zeroinit(dropout=1)",
        "ghost_batch_norm(size=big)",
        "ghost_batch_norm(size=0)",
        "batch_norm(initialization=hee)",
        "norm_on_skip(place=elsewhere)",
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        nl.convert(resnet_cifar(8), text)


def test_lsuv_without_a_batch_is_refused() -> None:
    with pytest.raises(nl.UnsupportedEditError, match="pass a batch"):
        nl.convert(NETWORKS["cifar_8"].build(), "lsuv")


@pairs(PAIRS)
def test_a_conversion_keeps_its_promises(scheme: str, network: str) -> None:
    model, batch = NETWORKS[network].build().eval(), NETWORKS[network].batch
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kinds = {name: type(module) for name, module in model.named_modules()}
    net = nl.convert(model, scheme, batch(16))
    # The original is untouched, and its mode is that of the conversion.
    assert {name: type(module) for name, module in model.named_modules()} == kinds
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training for module in net.modules())
    assert not {id(p) for p in model.parameters()} & {id(p) for p in net.parameters()}
    with pytest.raises(nl.AlreadyConvertedError, match="already"):
        nl.convert(net, "none", batch())
    if scheme in WITHOUT_NORMS:
        assert not [name for name, module in net.named_modules() if isinstance(module, NORM_TYPES)]
        assert not any("running" in name for name in net.state_dict())
        assert nl.residual_map(net).norms == {}
    if network in CONVOLUTIONAL:
        check_scalars(net, scheme, network)
    net.train()
    if scheme in IDENTITY_AT_START:
        check_identity_at_start(net, network)
    logits = net(batch())
    assert logits.shape == (6, 10)
    loss = F.cross_entropy(logits, targets(6))
    if scheme.startswith("fixup") and "zero=False" not in scheme:
        assert loss.item() == pytest.approx(math.log(10), rel=1e-6)
    loss.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def check_scalars(net: nn.Module, scheme: str, network: str) -> None:
    """Parameters of one element are the multipliers and scalar biases that the scheme adds, as many as stated."""
    single: dict[str, int] = {}
    for name, parameter in net.named_parameters():
        if parameter.numel() == 1:
            assert parameter.shape == (1,)
            kind = name.rpartition(".")[2]
            single[kind] = single.get(kind, 0) + 1
    norms = len(nl.residual_map(NETWORKS[network].build()).norms)
    pointwise = {"alpha": norms, "shift": norms if scheme.startswith("derf") else 0}
    assert {name: single.pop(name, 0) for name in pointwise} == (
        pointwise if scheme.startswith(("dyt", "derf")) else {"alpha": 0, "shift": 0}
    )
    assert set(single) <= {"multiplier", "input_bias", "output_bias"}
    biases = single.get("input_bias", 0) + single.get("output_bias", 0)
    expected = SCALARS.get(scheme, lambda depth: (0, 0))(NETWORKS[network].blocks)
    assert (single.get("multiplier", 0), biases) == expected


def check_identity_at_start(net: nn.Module, network: str) -> None:
    """Every block starts as its skip path, bit for bit."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    outputs: dict[str, Tensor] = {}
    handles = []
    for block in nl.residual_map(net).blocks:
        total = net.get_submodule(block.sum)
        assert isinstance(total, ResidualSum)
        handles.append(
            total.register_forward_hook(
                lambda _, inputs, output, name=block.name: seen.update({name: (inputs[0], output)})
            )
        )
        handles.append(
            net.get_submodule(block.name).register_forward_hook(
                lambda _, inputs, output, name=block.name: outputs.update({name: output})
            )
        )
    net(NETWORKS[network].batch())
    for handle in handles:
        handle.remove()
    assert len(seen) == NETWORKS[network].blocks
    for name, (skip, total) in seen.items():
        assert skip.std() > 0, name
        assert torch.equal(total, skip), name
        expected = torch.relu(skip) if NETWORKS[network].family == "cifar" else skip
        assert torch.equal(outputs[name], expected), name


@pairs(PAIRS)
def test_a_conversion_in_double_precision(scheme: str, network: str) -> None:
    net, batch = converted(scheme, network, dtype=torch.float64), NETWORKS[network].batch
    kinds = {value.dtype for value in net.state_dict().values() if value.is_floating_point()}
    assert kinds == {torch.float64}
    check_every_parameter_learns(net, scheme, network)
    perturbed(net)
    x, y = batch().double(), targets(6)
    if scheme in INDEPENDENT:
        # A batch is its examples, and micro-batches add up to the gradient of the whole batch.
        together, alone = net(x), torch.cat([net(example[None]) for example in x])
        assert together.std() > 1e-3
        torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)
        whole, accumulated = gradients(net, x, y), gradients(net, x, y, parts=3)
        assert whole.keys() == accumulated.keys()
        for name, gradient in whole.items():
            scale = max(1.0, gradient.abs().max().item())
            assert (accumulated[name] - gradient).abs().max().item() <= 1e-10 * scale, name
    net(x)
    expected = net.eval()(x)
    torch.testing.assert_close(deepcopy(net).float()(x.float()), expected.float(), rtol=1e-3, atol=1e-3)
    if network in CONVOLUTIONAL:
        net.to(memory_format=torch.channels_last)
        actual = net(x.to(memory_format=torch.channels_last))
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def check_every_parameter_learns(net: nn.Module, scheme: str, network: str) -> None:
    """Within a few steps each gets a gradient, but for those on which the loss does not depend at all."""
    net = deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    largest = dict.fromkeys(dict(net.named_parameters()), 0.0)
    learning = [name for name in largest if not gets_no_gradient(scheme, network, name)]
    for _ in range(5):
        found = gradients(net, NETWORKS[network].batch(6).double(), targets(6))
        assert found.keys() == largest.keys()
        largest = {name: max(largest[name], found[name].abs().max().item()) for name in largest}
        if all(largest[name] > 1e-9 for name in learning):
            break
        optimizer.step()
    for name, value in largest.items():
        assert value > 1e-9 if name in learning else value < 1e-11, name


@pytest.mark.parametrize("network", SMALLEST)
def test_batch_norm_fails_both(network: str) -> None:
    net = perturbed(converted("batch_norm", network, dtype=torch.float64))
    x, y = NETWORKS[network].batch().double(), targets(6)
    together, halves = net(x), torch.cat([net(half) for half in x.chunk(2)])
    assert (together - halves).abs().max() > 1e-2
    whole, accumulated = gradients(net, x, y), gradients(net, x, y, parts=2)
    assert max((accumulated[name] - whole[name]).abs().max() for name in whole) > 1e-2


@pytest.mark.parametrize(("depth", "expected"), [(20, (9, 38, 268_393)), (110, (54, 218, 1_720_138))])
def test_published_counts_of_fixup(depth: int, expected: tuple[int, int, int]) -> None:
    parameters = list(nl.convert(resnet_cifar(depth), "fixup").named_parameters())
    multipliers = sum(name.endswith("multiplier") for name, _ in parameters)
    biases = sum(name.endswith(("input_bias", "output_bias")) for name, _ in parameters)
    assert (multipliers, biases, sum(p.numel() for _, p in parameters)) == expected


@pairs(
    [pair for pair in SMALL_PAIRS if pair in ONE_OF_EACH or pair[0] not in ("remove_branches", *WITH_ARGUMENTS)],
    slow=further,
)
def test_the_stated_map_is_the_traced_one(scheme: str, network: str) -> None:
    net, x = converted(scheme, network), NETWORKS[network].batch()
    assert nl.residual_map(net) == traced_map(net, x)


@pairs(ONE_OF_EACH, slow=further)
def test_a_converted_network_is_an_ordinary_module(scheme: str, network: str) -> None:
    """`deepcopy`, `pickle`, a state dict in a network converted anew, bf16 autocast and `torch.export`."""
    net, x = perturbed(converted(scheme, network)), NETWORKS[network].batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(net(x).float(), targets(6))
    loss.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    net.zero_grad()
    expected = net.eval()(x)
    assert torch.equal(deepcopy(net)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), expected)
    fresh = converted(scheme, network).eval()
    assert not torch.equal(fresh(x), expected)
    fresh.load_state_dict(net.state_dict())
    assert torch.equal(fresh(x), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = net(x).float()
    assert (rounded - expected).norm() <= 0.05 * expected.norm()
    program = torch.export.export(net, (x,), strict=False)
    other = NETWORKS[network].batch()
    torch.testing.assert_close(program.module()(other), net(other), rtol=1e-6, atol=1e-6)
