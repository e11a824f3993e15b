"""The signal of the demo's deepest networks at initialization: measured, predicted, and by its law."""

from __future__ import annotations

import pandas as pd

from normless.demo.settings import DemoSettings
from normless.sweeps import law_skip_variance


def measure_signal(settings: DemoSettings, scheme: str, examples: int = 128) -> pd.DataFrame:
    """The signal of the deepest network with a scheme on the first test images: the probe `signal`.

    Returns:
        The rows of `Signal`, with the columns ``depth`` and ``scheme`` before them and ``law_skip_variance``
        after.
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
