"""The signal of the demo's networks, and the laws drawn beside it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from normless_lab.demo import DemoSettings
from normless_lab.demo.signal import law_skip_variance, measure_signal


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("none", [0.5, 1, 2, 4]),
        ("batch_norm", [0.5, 1.5, 2.5, 3.5]),
        ("sqrt2", [0.5] * 4),
        ("skipinit", [0.5] * 4),
        ("fixup", [0.5] * 4),
        ("lsuv", [np.nan] * 4),
    ],
)
def test_laws_start_at_the_first_measured_block(scheme: str, expected: list[float]) -> None:
    signal = pd.DataFrame({"block": [1, 2, 3, 4], "skip_variance": [0.5, 9, 9, 9]})
    np.testing.assert_array_equal(law_skip_variance(scheme, signal), expected)


@pytest.mark.parametrize("scheme", ["none", "batch_norm", "skipinit", "fixup"])
def test_the_signal_of_the_first_stage_follows_the_law_within_a_factor(scheme: str) -> None:
    # Eight blocks of 64 channels on 8×8 images: the zeros around the image cost each convolution about 1/6.
    settings = DemoSettings(depths=(52,), schemes=(scheme,), width=4)
    signal = measure_signal(settings, scheme)
    assert list(signal["block"]) == list(range(1, 25))
    assert set(signal["scheme"]) == {scheme}
    assert set(signal["depth"]) == {52}
    stage = signal[signal["block"].between(2, 8)]
    growth = np.log(stage["skip_variance"].iloc[-1] / stage["skip_variance"].iloc[0])
    lawful = np.log(stage["law_skip_variance"].iloc[-1] / stage["law_skip_variance"].iloc[0])
    assert growth == pytest.approx(lawful, rel=0.35, abs=1e-6)
