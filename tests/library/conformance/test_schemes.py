"""What schemes promise beyond the matrix: work in proportion to depth, arguments, published counts, batch norm's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gallery import ROWS
from matrix import refusals
from matrix.case import Subject, perturbed
from matrix.scheme_facts import SCHEMES
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import resnet_cifar
from normless.models.resnets import ResNetCifar

IMAGES = torch.randn(6, 3, 8, 8)


def gradients(model: nn.Module, x: Tensor, y: Tensor, parts: int = 1) -> dict[str, Tensor]:
    """Gradients of the mean loss over the batch, accumulated over `parts` micro-batches."""
    model.zero_grad()
    for inputs, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
        (F.cross_entropy(model(inputs), labels) / parts).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


QUICK = ("fixup", "nf_resnet", "only_top_norm", "dyt")
TAKE_CIFAR = [text for text in SCHEMES if "(" not in text and "cifar 8" not in refusals.listed()[text]]


@pytest.mark.parametrize(
    "scheme", [pytest.param(text, marks=() if text in QUICK else pytest.mark.slow) for text in TAKE_CIFAR]
)
def test_to_convert_takes_steps_in_proportion_to_the_number_of_layers(
    scheme: str, monkeypatch: pytest.MonkeyPatch
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
        nl.convert(resnet_cifar(depth), scheme, IMAGES)
    assert met[3] - met[2] == met[2] - met[1] > 0


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
        nl.convert(resnet_cifar(8), "lsuv")


@pytest.mark.parametrize("name", ["wide 10-2 gray", "cifar 8", "dense of two layers"])
def test_batch_norm_fails_both(name: str) -> None:
    """A batch is not its examples, and micro-batches do not add up to the gradient of the whole batch."""
    subject = Subject(ROWS[name])
    net = perturbed(subject.convert("batch_norm").double(), 0.1)
    x, y = subject.inputs[0].double(), torch.arange(6)
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
