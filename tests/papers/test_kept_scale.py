"""The text of a scheme without the edit that gives weights the scale of the norms."""

from __future__ import annotations

import pytest

import normless as nl
from normless_papers.kept_scale import as_printed, without_kept_scale


@pytest.mark.parametrize(
    ("scheme", "without"),
    [
        ("none", "none(keep_scale=False)"),
        ("skipinit(alpha=1/sqrt(L))", "skipinit(alpha=1/sqrt(L), keep_scale=False)"),
        ("none + ZeroClassifier()", "none(keep_scale=False) + ZeroClassifier()"),
        ("none(keep_scale=True)", "none(keep_scale=True)"),
        ("fixup(gain=0.1)", "fixup(gain=0.1)"),
        ("batch_norm", "batch_norm"),
    ],
)
def test_the_texts(scheme: str, without: str) -> None:
    assert without_kept_scale(scheme) == without
    nl.scheme(without)
    assert as_printed(without) == scheme.replace("()", "")
