"""The signal of the demo's deepest networks at initialization: measured, predicted, and by the law of its scheme.

The laws are those of the infinite-width limit without padding. Without normalization every branch has the variance of
its skip path, so each sum doubles it; after a norm every branch has variance 1, so each sum adds 1; a branch that
starts at zero adds nothing, and 1/√2 on the sum of two equal variances keeps them (De & Smith 2020, section 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import pandas as pd

from normless.demo.settings import DemoSettings


@dataclass(frozen=True)
class Law:
    """The variance on the skip path at block d = 1, 2, …, as text and as a function of that at block 1."""

    text: str
    variance: Callable[[float, pd.Series], pd.Series]


_CONSTANT = Law("∼ 1", lambda first, block: first + 0.0 * block)
LAWS = MappingProxyType(
    {
        "none": Law("∼ 2ᵈ", lambda first, block: first * 2.0 ** (block - 1)),
        "batch_norm": Law("∼ d", lambda first, block: first + block - 1),
        **dict.fromkeys(("sqrt2", "skipinit", "fixup"), _CONSTANT),
    }
)


def law_skip_variance(scheme: str, signal: pd.DataFrame) -> pd.Series:
    """The law of a scheme, from the measured variance of the first block on; NaN for a scheme without one."""
    if scheme not in LAWS:
        return pd.Series(float("nan"), index=signal.index)
    return LAWS[scheme].variance(float(signal["skip_variance"].iloc[0]), signal["block"].astype(float))


def measure_signal(settings: DemoSettings, scheme: str, examples: int = 128) -> pd.DataFrame:
    """The signal of the deepest network with a scheme on the first test images.

    Returns:
        The columns of the probe `signal`, after ``depth`` and ``scheme``, and ``law_skip_variance``.
    """
    import torch

    from normless.data import load_data
    from normless.models import build_model
    from normless.probes import probe
    from normless.sweeps import convert

    data, depth = load_data(settings.data), max(settings.depths)
    inputs = next(iter(data.test_batches(examples, device=torch.device("cpu")))).inputs
    torch.manual_seed(settings.seed)
    channels, height, width = data.image_shape
    model = build_model(settings.model(depth), classes=data.classes, image_shape=(channels, height, width))
    table: pd.DataFrame = probe(convert(model, scheme, inputs), inputs, ["signal"]).signal
    table.insert(0, "depth", depth)
    table.insert(1, "scheme", scheme)
    table["law_skip_variance"] = law_skip_variance(scheme, table)
    return table
