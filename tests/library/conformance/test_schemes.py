"""Every scheme on every reference network: what a conversion promises, one property a test."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
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
    a_copy,
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
SMALL_PAIRS = [pair for pair in PAIRS if pair[1] in SMALLEST]
WITH_ARGUMENTS = [text for text in SCHEME_TEXTS if "(" in text]


def pairs(chosen: list[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("scheme", "network"), chosen, ids=["-".join(pair) for pair in chosen])


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


@pairs([pair for pair in PAIRS if pair[1] == "cifar_8"])
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
        "fixup(gain=large)",
        "layer_scale(init=small)",
        "skipinit(alpha=None)",
        "skipinit(alpha=nan)",
        "zeroinit(dropout=much)",
        "zeroinit(dropout=1)",
        "ghost_batch_norm(size=big)",
        "ghost_batch_norm(size=2.5)",
        "ghost_batch_norm(size=0)",
        "group_norm(groups=many)",
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
def test_the_original_is_untouched_and_mode_is_kept(scheme: str, network: str) -> None:
    model = NETWORKS[network].build().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kinds = {name: type(module) for name, module in model.named_modules()}
    net = nl.convert(model, scheme, NETWORKS[network].batch(16))
    assert {name: type(module) for name, module in model.named_modules()} == kinds
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training for module in net.modules())
    assert not {id(p) for p in model.parameters()} & {id(p) for p in net.parameters()}


@pairs(PAIRS)
def test_output_and_gradients_are_finite(scheme: str, network: str) -> None:
    net, x = a_copy(scheme, network), NETWORKS[network].batch()
    logits = net(x)
    assert logits.shape == (6, 10)
    assert logits.isfinite().all()
    F.cross_entropy(logits, targets(6)).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pairs([pair for pair in PAIRS if pair[0] in WITHOUT_NORMS])
def test_no_norm_is_left(scheme: str, network: str) -> None:
    net = a_copy(scheme, network)
    assert not [name for name, module in net.named_modules() if isinstance(module, NORM_TYPES)]
    assert not any("running" in name for name in net.state_dict())
    assert nl.residual_map(net).norms == {}


@pairs([pair for pair in PAIRS if pair[0] in IDENTITY_AT_START])
def test_every_block_starts_as_its_skip_path_bit_for_bit(scheme: str, network: str) -> None:
    net = a_copy(scheme, network)
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    outputs: dict[str, Tensor] = {}
    for block in nl.residual_map(net).blocks:
        total = net.get_submodule(block.sum)
        assert isinstance(total, ResidualSum)
        total.register_forward_hook(
            lambda _, inputs, output, name=block.name: seen.update({name: (inputs[0], output)})
        )
        net.get_submodule(block.name).register_forward_hook(
            lambda _, inputs, output, name=block.name: outputs.update({name: output})
        )
    net(NETWORKS[network].batch())
    assert len(seen) == NETWORKS[network].blocks
    for name, (skip, total) in seen.items():
        assert skip.std() > 0, name
        assert torch.equal(total, skip), name
        expected = torch.relu(skip) if NETWORKS[network].family == "cifar" else skip
        assert torch.equal(outputs[name], expected), name


@pairs([pair for pair in PAIRS if pair[0].startswith("fixup") and "zero=False" not in pair[0]])
def test_fixup_starts_at_the_loss_of_chance(scheme: str, network: str) -> None:
    net, x = a_copy(scheme, network), NETWORKS[network].batch()
    assert not net(x).any()
    assert F.cross_entropy(net(x), targets(6)).item() == pytest.approx(math.log(10), rel=1e-6)


@pairs(PAIRS)
def test_every_parameter_learns(scheme: str, network: str) -> None:
    """Within a few steps each gets a gradient, but for those on which the loss does not depend at all."""
    net = a_copy(scheme, network, dtype=torch.float64)
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


@pairs([pair for pair in PAIRS if pair[0] in INDEPENDENT])
def test_a_batch_is_its_examples(scheme: str, network: str) -> None:
    net = perturbed(a_copy(scheme, network, dtype=torch.float64))
    x = NETWORKS[network].batch().double()
    assert net.training
    together, alone = net(x), torch.cat([net(example[None]) for example in x])
    assert together.std() > 1e-3
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)


@pairs([pair for pair in PAIRS if pair[0] in INDEPENDENT])
def test_accumulation_over_micro_batches_is_the_full_batch(scheme: str, network: str) -> None:
    net = perturbed(a_copy(scheme, network, dtype=torch.float64))
    x, y = NETWORKS[network].batch().double(), targets(6)
    whole, accumulated = gradients(net, x, y), gradients(net, x, y, parts=3)
    assert whole.keys() == accumulated.keys()
    for name, gradient in whole.items():
        scale = max(1.0, gradient.abs().max().item())
        assert (accumulated[name] - gradient).abs().max().item() <= 1e-10 * scale, name


@pytest.mark.parametrize("network", NETWORKS)
def test_batch_norm_fails_both(network: str) -> None:
    net = perturbed(converted("batch_norm", network, dtype=torch.float64))
    x, y = NETWORKS[network].batch().double(), targets(6)
    together, halves = net(x), torch.cat([net(half) for half in x.chunk(2)])
    assert (together - halves).abs().max() > 1e-2
    whole, accumulated = gradients(net, x, y), gradients(net, x, y, parts=2)
    assert max((accumulated[name] - whole[name]).abs().max() for name in whole) > 1e-2


@pairs(SMALL_PAIRS)
def test_copies_compute_the_same(scheme: str, network: str) -> None:
    """`deepcopy`, `pickle`, and a state dict loaded into a network converted anew."""
    net, x = perturbed(a_copy(scheme, network)), NETWORKS[network].batch()
    net(x)
    net.eval()
    expected = net(x)
    assert torch.equal(deepcopy(net)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), expected)
    fresh = converted(scheme, network).eval()
    assert not torch.equal(fresh(x), expected)
    fresh.load_state_dict(net.state_dict())
    assert torch.equal(fresh(x), expected)


@pairs(SMALL_PAIRS)
def test_float64_throughout(scheme: str, network: str) -> None:
    net = a_copy(scheme, network, dtype=torch.float64)
    kinds = {name: value.dtype for name, value in net.state_dict().items() if value.is_floating_point()}
    assert set(kinds.values()) == {torch.float64}
    single = deepcopy(net).float().eval()
    x = NETWORKS[network].batch()
    torch.testing.assert_close(net.eval()(x.double()).float(), single(x), rtol=1e-3, atol=1e-4)


@pairs(SMALL_PAIRS)
def test_bf16_autocast(scheme: str, network: str) -> None:
    net, x = perturbed(a_copy(scheme, network)), NETWORKS[network].batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(net(x).float(), targets(6))
    loss.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    net.eval()
    exact = net(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = net(x).float()
    assert (rounded - exact).norm() <= 0.05 * exact.norm()


@pairs([pair for pair in PAIRS if pair[1] in CONVOLUTIONAL])
def test_channels_last(scheme: str, network: str) -> None:
    net, x = perturbed(a_copy(scheme, network, dtype=torch.float64)), NETWORKS[network].batch().double()
    net(x)
    net.eval()
    expected = net(x)
    net.to(memory_format=torch.channels_last)
    actual = net(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pairs([pair for pair in PAIRS if pair[1] in CONVOLUTIONAL])
def test_parameters_of_one_element_are_the_scalars(scheme: str, network: str) -> None:
    net = a_copy(scheme, network)
    single = {name.rpartition(".")[2]: 0 for name, p in net.named_parameters() if p.numel() == 1}
    for name, parameter in net.named_parameters():
        if parameter.numel() == 1:
            assert parameter.shape == (1,)
            single[name.rpartition(".")[2]] += 1
    norms = len(nl.residual_map(NETWORKS[network].build()).norms)
    pointwise = {"alpha": norms, "shift": norms if scheme.startswith("derf") else 0}
    assert {name: single.pop(name, 0) for name in pointwise} == (
        pointwise if scheme.startswith(("dyt", "derf")) else {"alpha": 0, "shift": 0}
    )
    assert set(single) <= {"multiplier", "input_bias", "output_bias"}
    biases = single.get("input_bias", 0) + single.get("output_bias", 0)
    expected = SCALARS.get(scheme, lambda depth: (0, 0))(NETWORKS[network].blocks)
    assert (single.get("multiplier", 0), biases) == expected


@pytest.mark.parametrize(("depth", "expected"), [(20, (9, 38, 268_393)), (110, (54, 218, 1_720_138))])
def test_published_counts_of_fixup(depth: int, expected: tuple[int, int, int]) -> None:
    parameters = list(nl.convert(resnet_cifar(depth), "fixup").named_parameters())
    multipliers = sum(name.endswith("multiplier") for name, _ in parameters)
    biases = sum(name.endswith(("input_bias", "output_bias")) for name, _ in parameters)
    assert (multipliers, biases, sum(p.numel() for _, p in parameters)) == expected


@pairs([pair for pair in PAIRS if pair[1] == "cifar_8"])
def test_a_second_conversion_is_refused(scheme: str, network: str) -> None:
    net, x = a_copy(scheme, network), NETWORKS[network].batch()
    with pytest.raises(nl.AlreadyConvertedError, match="already; 'none' is defined on the network as it was before"):
        nl.convert(net, "none", x)


@pairs([pair for pair in SMALL_PAIRS if pair in ONE_OF_EACH or pair[0] not in ("remove_branches", *WITH_ARGUMENTS)])
def test_the_stated_map_is_the_traced_one(scheme: str, network: str) -> None:
    net, x = a_copy(scheme, network), NETWORKS[network].batch()
    assert nl.residual_map(net) == traced_map(net, x)


@pairs(ONE_OF_EACH)
def test_export(scheme: str, network: str) -> None:
    net, x = perturbed(a_copy(scheme, network)).eval(), NETWORKS[network].batch()
    program = torch.export.export(net, (x,), strict=False)
    torch.testing.assert_close(program.module()(x), net(x), rtol=1e-6, atol=1e-6)
    other = NETWORKS[network].batch()
    torch.testing.assert_close(program.module()(other), net(other), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "network"), [("fixup", "cifar_8"), ("skipinit(alpha=1)", "wide_10_2_gray")])
def test_compile(scheme: str, network: str) -> None:
    net, x = perturbed(converted(scheme, network)), NETWORKS[network].batch()
    expected = gradients(net, x, targets(6))
    compiled = torch.compile(net)
    torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-4)
    net.zero_grad()
    F.cross_entropy(compiled(x), targets(6)).backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-4)
