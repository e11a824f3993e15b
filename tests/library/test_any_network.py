"""Conversions of networks as people write them: closed forms, and what the gallery and the matrix do not ask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gallery import ROWS
from gallery.odd import in_sequence
from streams_of_networks import IMAGES, WIDTH, Network, Siamese, conv
from torch import Tensor, nn
from written_networks import Written

import normless as nl
from normless.errors import EvaluationOnlyWarning


def test_one_edit_serves_both_streams_of_a_siamese_network() -> None:
    model, other = Siamese(), torch.randn(4, 3, 8, 8)
    net = nl.convert(model, "skipinit(alpha=0.3, keep_scale=False)", IMAGES)

    def alone(x: Tensor) -> Tensor:
        h = model.stem(x)
        for block in model.blocks:
            h = h + 0.3 * block.conv2(F.relu(block.conv1(h)))
        return model.head(h.mean((2, 3)))

    torch.testing.assert_close(net(IMAGES, other), alone(IMAGES) - alone(other))


def test_a_block_that_runs_three_times_counts_three_times() -> None:
    model, (x,) = ROWS["Tied"].network(), ROWS["Tied"].example()[0]
    net = nl.convert(model, "skipinit(alpha=1/sqrt(L), keep_scale=False)", x)
    assert net.blocks[0].conv2.get_parameter("multiplier").item() == pytest.approx(3**-0.5)
    block, h = model.blocks[0], model.stem(x)
    for _ in range(3):
        h = h + 3**-0.5 * block.conv2(F.relu(block.conv1(h)))
    torch.testing.assert_close(net(x), model.head(h.mean((2, 3))))


def joined(m: Any, x: Tensor) -> Tensor:
    """x + cat(f(x), relu(g(x))) of 3 and 5 channels."""
    h = torch.relu(m.norm(m.stem(x)))
    return x + torch.cat([m.f(h), m.g(h).relu()], 1)


def test_a_branch_that_ends_in_a_concatenation_with_a_relu_is_refused_by_fixup() -> None:
    """Of a ReLU after a weight of zero the slope is zero, so that Fixup would end the training of g."""
    parts = {"stem": conv(), "norm": nn.BatchNorm2d(WIDTH), "f": conv(outputs=3), "g": conv(outputs=WIDTH - 3)}
    flat = in_sequence(Written(joined, **parts))
    with pytest.raises(nl.errors.UnsupportedEditError, match=r"1\.g\.weight.*never get a gradient"):
        nl.convert(flat, "fixup", IMAGES)
    assert nl.convert(flat, "skipinit", IMAGES) is not None
    with pytest.raises(
        nl.errors.UnsupportedEditError, match="1: its branch ends in several weight layers side by side"
    ):
        nl.convert(ROWS["joined_branches"].network(), "layer_scale", IMAGES)


def test_a_conversion_that_no_training_pass_verifies_says_so() -> None:
    class Targets(Network):
        def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
            logits = super().forward(x)
            return logits if not self.training else nn.functional.cross_entropy(logits, target)  # type: ignore[arg-type]

    images = torch.randn(2, 3, 8, 8)
    said = "The conversion is verified in evaluation only.*in training mode"
    with pytest.warns(EvaluationOnlyWarning, match=said) as warned:
        nl.convert(Targets(), "skipinit", images)
    assert [warning.filename for warning in warned] == [__file__]
