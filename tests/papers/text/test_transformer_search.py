"""The transformer as the searches use it: with its cache or without, greedy or with a beam, the same sentences."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

import normless as nl
from normless.models import transformer
from normless_lab.train.decoding import beam_search, greedy_search


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("scheme", ["batch_norm", "fixup", "deepnorm"])
def test_searches_find_the_same_with_the_cache(scheme: str, norm: Literal["pre", "post"]) -> None:
    if (scheme, norm) == ("deepnorm", "pre"):
        scheme = "skipinit(alpha=1)"
    net = nl.convert(transformer(12, 2, 8, 2, 12, norm, 0.0, 1), scheme).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    source = torch.randint(4, 12, (5, 6))
    source[1, 3:], source[4, 1:] = 0, 0
    for search in (greedy_search, beam_search):
        found, again = search(net, source, longer_by=5), search(net, source, longer_by=5, use_cache=False)
        assert [one.tokens for one in found] == [one.tokens for one in again]
        assert [one.log_probability for one in found] == pytest.approx([one.log_probability for one in again])
