"""Networks of the gallery that this package converts, and that fit their batch, have no findings."""

from __future__ import annotations

from math import isfinite
from typing import Any

import pytest
import torch
from gallery import ROWS, Row
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import normless as nl
from normless._internal.copying import copied
from normless.errors import NormlessError
from normless.schemes import SCHEMES

# One network of each kind, with schemes that begin closed, without norms, or with other norms.
SAMPLE = (
    *(
        ("wide 16-1", "none", "adamw"),
        ("cifar 8", "fixup", "sgd"),
        ("our post-norm transformer", "deepnorm", "adamw"),
    ),
    *(("torch pre-norm encoder", "rezero", "adamw"), ("small timm ViT", "xavier", "adamw")),
    ("ResidualUNet", "none", "adamw"),
)
# Every row by eight schemes, every scheme with rows of all kinds, by either optimizer.
FURTHER = [
    (name, [*SCHEMES][(8 * number + place) % len(SCHEMES)], ("sgd", "adamw")[place % 2])
    for number, name in enumerate(ROWS)
    for place in range(8)
    if ROWS[name].size != "zoo"
]
# A conversion harms if its training leaves more than half of the loss, and this multiple of the original's.
STEPS, HALF, WORSE = 100, 0.5, 1.2
# Kinds of findings that concern the optimizer or are the trial itself, and that may hold for the original too.
OF_STEPS = {"rate_too_large", "rate_too_small", "effective_rate", "not_fitted"}


def optimizer_of(name: str, network: nn.Module, inputs: tuple[Any, ...]) -> Optimizer:
    decay, rate = {"sgd": (5e-4, 0.1), "adamw": (0.01, 1e-3)}[name]
    groups = nl.param_groups(network, lr=rate, weight_decay=decay, example_inputs=inputs)
    return SGD(groups, momentum=0.9) if name == "sgd" else AdamW(groups)


def left_of_loss(row: Row, network: nn.Module, optimizer: Optimizer) -> float:
    """The share of the loss that a plain training leaves, infinite if it diverges."""
    (inputs, kwargs), losses = row.example(), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = row.loss(network.train()(*inputs, **kwargs))
        losses.append(float(loss.detach()))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return losses[-1] / losses[0] if isfinite(losses[-1]) else float("inf")


def check(name: str, scheme: str, optimizer: str) -> None:
    """A finding is right if the network hardly trains; one in the network, if the original trains better."""
    row = ROWS[name]
    model, (inputs, kwargs) = row.network(), row.example()
    try:
        converted = nl.convert(model, scheme, *inputs, **kwargs)
    except NormlessError as refused:
        pytest.skip(str(refused))

    def loss(outputs: Any, _: object) -> Tensor:
        return row.loss(outputs)

    def left(trained: nn.Module) -> float:
        return left_of_loss(row, trained, optimizer_of(optimizer, trained, inputs))

    torch.manual_seed(0)
    with_optimizer = optimizer_of(optimizer, converted, inputs)
    found = nl.diagnose(converted, (kwargs or inputs, None), loss=loss, optimizer=with_optimizer)
    if found.findings:
        after = left(copied(converted))
        assert after > HALF, found.full(why=False)
        if {finding.kind for finding in found.findings} - OF_STEPS:
            assert after > WORSE * left(model), found.full(why=False)


@pytest.mark.parametrize(("network", "scheme", "optimizer"), SAMPLE)
def test_a_conversion_has_no_findings(network: str, scheme: str, optimizer: str) -> None:
    check(network, scheme, optimizer)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "scheme", "optimizer"), FURTHER)
def test_further_conversions_have_no_findings(network: str, scheme: str, optimizer: str) -> None:
    check(network, scheme, optimizer)
