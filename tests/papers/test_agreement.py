"""Agreements, outcomes of runs and networks written out: what the artefacts' checks are made of."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from normless import convert
from normless.models import resnet_cifar, wide_resnet
from normless_papers.artefact import Context
from normless_papers.claims.agreement import Agreement, agreement, agreement_table, deviation
from normless_papers.networks.reference_forward import disturbed, resnet_by_fixup, wide_resnet_with_multipliers
from normless_papers.networks.seeded_inputs import training_batch


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), st.integers(0, 4), st.floats(0.001, 1))
def test_deviation_is_the_largest_relative_to_the_largest(values: list[float], place: int, size: float) -> None:
    expected = torch.tensor(values, dtype=torch.float64)
    measured = expected.clone()
    measured[place % len(values)] += size
    largest = max(abs(value) for value in values) or 1.0
    moved = abs(float(measured[place % len(values)]) - values[place % len(values)])
    assert deviation(measured, expected) == pytest.approx(moved / largest)
    assert deviation(expected, expected) == 0


def test_a_deviation_is_no_agreement() -> None:
    exact, off = torch.ones(3), torch.tensor([1.0, 1.0, 1.1])
    assert agreement("They are the same", exact, exact).check().verdict == "holds"
    assert agreement("They are the same", off, exact, 0.01).check().verdict == "fails"
    assert agreement("They are the same", off, exact, 0.2).check().verdict == "holds"
    assert Agreement("A number", math.nan, 1.0).check().verdict == "fails"
    with pytest.raises(ValueError, match="two tensors of one shape"):
        deviation(torch.ones(2), torch.ones(1))
    table = agreement_table([agreement("one", off, exact, 0.01), agreement("other", exact, exact)])
    assert table["deviation"].tolist() == pytest.approx([0.1, 0.0])


@pytest.mark.parametrize("scheme", ["skipinit(alpha=1)", "zeroinit(dropout=0)"])
def test_the_wide_resnet_written_out_tells_a_wrong_placement(scheme: str) -> None:
    """With the multiplier applied in front of the bias the formula is another function, and is found to be."""
    network = disturbed(convert(wide_resnet(10, 1), scheme)).eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert deviation(network(x), wide_resnet_with_multipliers(network, x)) < 1e-12
    with torch.no_grad():
        network.get_submodule("blocks.1.conv2").get_parameter("multiplier").mul_(1.01)
        before = network(x)
        network.get_submodule("blocks.1.conv2").get_parameter("multiplier").div_(1.01)
    assert deviation(before, wide_resnet_with_multipliers(network, x)) > 1e-6


def test_fixup_written_out_tells_a_missing_bias() -> None:
    network = disturbed(convert(resnet_cifar(14), "fixup")).eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    whole = network(x)
    assert deviation(whole, resnet_by_fixup(network, x)) < 1e-12
    nn.init.zeros_(network.get_submodule("blocks.2.relu1").get_parameter("output_bias"))
    assert deviation(whole, resnet_by_fixup(network, x)) > 1e-6


def test_a_batch_is_of_the_data_asked_for(context: Context) -> None:
    batch = training_batch(context, "gaussian(image_shape=(2, 4, 4), classes=3, train=6)", 100)
    assert batch.inputs.shape == (6, 2, 4, 4)
    assert batch.classes == 3
    assert "6 training examples of gaussian" in batch.provenance
    other = training_batch(context, "gaussian(image_shape=(2, 4, 4), classes=3, train=60)", 6, epoch=1)
    assert not torch.equal(other.inputs, batch.inputs)
