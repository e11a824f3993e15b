"""The conversion at the start of a run: edits see the first batch, the checks after them a few of its examples."""

from __future__ import annotations

import pytest
import torch

import normless as nl
from normless.models import wide_resnet

FEW, WHOLE = 8, 48


@pytest.mark.parametrize("scheme", ["fixup", "lsuv"])
def test_what_is_converted_does_not_depend_on_what_is_checked(scheme: str) -> None:
    images = torch.randn(WHOLE, 3, 8, 8)
    states = []
    for few in (None, images[:FEW], {"input": images[:2]}):
        torch.manual_seed(0)
        network = wide_resnet(depth=10, width=1)
        states.append(nl.convert(network, scheme, images, check_inputs=few).state_dict())
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(value, states[0][name]) for name, value in state.items())
