"""Tiny transformers of Hugging Face and of torch, held against a count by hand."""

from __future__ import annotations

import pytest
from zoo_checks import Expected, MapChecks, Mapped
from zoo_transformers import BUILDERS

# Every layer is an attention and an MLP; T5's decoder has a cross attention between them.
EXPECTED = {
    "bert": Expected(3 * 2),
    "vit": Expected(3 * 2),
    "gpt2": Expected(3 * 2),
    "t5": Expected(2 * 2 + 3 * 3),
    "swin": Expected((2 + 1) * 2),
    "convnext": Expected(1 + 2 + 1 + 1),
    # The first of every stage projects: to another width, at another stride, or both.
    "resnet": Expected(2 + 1 + 1, fitted=3),
    "encoder post-norm": Expected(3 * 2),
    "encoder pre-norm": Expected(3 * 2),
    "decoder": Expected(2 * 3),
}


QUICK = {"bert", "t5", "encoder pre-norm"}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.zoo) for name in BUILDERS]
)
def mapped(request: pytest.FixtureRequest) -> Mapped:
    model, inputs = BUILDERS[request.param]()
    return Mapped.of(model, expected=EXPECTED[request.param], **inputs)


class TestTransformers(MapChecks):
    pass
