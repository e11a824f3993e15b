"""What schemes promise beyond the matrix: work in proportion to depth, published counts, decoding with a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from matrix.case import perturbed
from torch import nn

import normless as nl
from normless.models import resnet_cifar, transformer
from normless.models.resnets import ResNetCifar

IMAGES = torch.randn(6, 3, 8, 8)


@pytest.mark.parametrize("scheme", ["fixup", "dyt"])
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


@pytest.mark.parametrize(("depth", "expected"), [(20, (9, 38, 268_393)), (110, (54, 218, 1_720_138))])
def test_published_counts_of_fixup(depth: int, expected: tuple[int, int, int]) -> None:
    parameters = list(nl.convert(resnet_cifar(depth), "fixup").named_parameters())
    multipliers = sum(name.endswith("multiplier") for name, _ in parameters)
    biases = sum(name.endswith(("input_bias", "output_bias")) for name, _ in parameters)
    assert (multipliers, biases, sum(p.numel() for _, p in parameters)) == expected


def test_cached_decoding_of_a_converted_transformer() -> None:
    model = transformer(30, 2, 16, 2, 24, "pre", 0.0, 1)
    net: Any = perturbed(nl.convert(model, "fixup", *model.example_inputs()).double(), 0.1)
    source, target = (torch.randint(1, 30, (4, length)) for length in (6, 5))
    source[2, 3:] = 0
    memory, cache, logits = net.encode(source), None, []
    for step in range(5):
        new, cache = net.decode(target[:, [step]], memory, cache)
        logits.append(new)
    torch.testing.assert_close(torch.cat(logits, 1), net(source, target), rtol=1e-9, atol=1e-9)
