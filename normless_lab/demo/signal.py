"""The signal of the demo's deepest networks at initialization: measured, predicted, and by the law of its scheme.

In the infinite-width limit without padding every branch has the variance of its skip path without normalization, and
1 after a norm (De & Smith 2020, section 2); a branch that starts at zero adds nothing, and 1/√2 on a sum of two equal
variances keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pandas as pd

from normless_lab.demo.settings import DemoSettings


class Law(NamedTuple):
    """The variance on the skip path at block d = 1, 2, …, as text and as a function of that at block 1."""

    text: str
    variance: Callable[[float, pd.Series], pd.Series]


_CONSTANT = Law("∼ 1", lambda first, block: first + 0.0 * block)
LAWS: Mapping[str, Law] = {
    "none": Law("∼ 2ᵈ", lambda first, block: first * 2.0 ** (block - 1)),
    "batch_norm": Law("∼ d", lambda first, block: first + block - 1),
    **dict.fromkeys(("sqrt2", "skipinit", "fixup"), _CONSTANT),
}


def law_skip_variance(scheme: str, signal: pd.DataFrame) -> pd.Series:
    """The law of a scheme, from the measured variance of the first block on; NaN for a scheme without one."""
    if scheme not in LAWS:
        return pd.Series(float("nan"), index=signal.index)
    return LAWS[scheme].variance(float(signal["skip_variance"].iloc[0]), signal["block"].astype(float))


def measure_signal(settings: DemoSettings, scheme: str) -> pd.DataFrame:
    """The probe `signal` of the deepest network on the first test images; its law is ``law_skip_variance``."""
    import torch

    from normless.conversion import convert
    from normless.models import build_model
    from normless.probes import probe
    from normless_lab.data import load_data
    from normless_lab.sweeps import without_kept_scale

    data, depth = load_data(settings.data), max(settings.depths)
    inputs = next(iter(data.test_batches(128, device=torch.device("cpu")))).inputs
    torch.manual_seed(settings.seed)
    channels, height, width = data.image_shape
    model = build_model(settings.model(depth), classes=data.classes, image_shape=(channels, height, width))
    network = convert(model, without_kept_scale(scheme), inputs)
    table: pd.DataFrame = probe(network, inputs, ["signal"]).signal
    table.insert(0, "depth", depth)
    table.insert(1, "scheme", scheme)
    return table.assign(law_skip_variance=law_skip_variance(scheme, table))
