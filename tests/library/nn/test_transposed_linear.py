"""The `Conv1D` of transformers with scalar parts, against the same linear layer the right way round."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.pytorch_utils import Conv1D

from normless.errors import UnsupportedEditError
from normless.nn import scalar_affine
from normless.nn.affine import outputs_of, takes_scalars
from normless.nn.standardized import scaled_std

PARTS = ("multiplier", "layer_scale", "input_bias", "output_bias")


@given(
    parts=st.sets(st.sampled_from(PARTS)),
    inputs=st.integers(1, 5),
    outputs=st.integers(1, 5),
    batch=st.sampled_from([(3,), (2, 3), (2, 1, 4)]),
)
@settings(deadline=None, max_examples=30)
def test_it_is_the_linear_layer(parts: set[str], inputs: int, outputs: int, batch: tuple[int, ...]) -> None:
    sideways, upright = Conv1D(outputs, inputs).double(), nn.Linear(inputs, outputs).double()
    sideways.weight.data = upright.weight.data.T.clone()
    sideways.bias.data = upright.bias.data.clone()
    one, other = scalar_affine(sideways), scalar_affine(upright)
    assert one.weight is sideways.weight
    for name in sorted(parts):
        value = torch.randn(outputs if name == "layer_scale" else 1, dtype=torch.float64)
        one.add_part(name, value.clone())
        other.add_part(name, value.clone())
    x = torch.randn(*batch, inputs, dtype=torch.float64)
    torch.testing.assert_close(one(x), other(x))
    one(x).square().sum().backward()
    other(x).square().sum().backward()
    for name, parameter in other.named_parameters():
        found = one.get_parameter(name).grad
        assert found is not None
        torch.testing.assert_close(found.T if name == "weight" else found, parameter.grad)


def test_what_is_known_of_it() -> None:
    layer = Conv1D(7, 4)
    assert takes_scalars(layer)
    assert outputs_of(layer, layer.weight) == outputs_of(scalar_affine(layer), layer.weight) == 7
    assert outputs_of(nn.Linear(4, 7), nn.Linear(4, 7).weight) == 7
    with pytest.raises(UnsupportedEditError, match="standardized in convolutions and linear layers, not in a Conv1D"):
        scaled_std(layer)
