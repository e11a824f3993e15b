"""The table of one watcher on one batch."""

from __future__ import annotations

from typing import Any

import pandas as pd
from torch import nn

from normless.probes import Watcher, observe


def measured(watcher: Watcher, model: nn.Module, inputs: Any, targets: Any = None, **options: Any) -> pd.DataFrame:
    observe(model, [watcher], inputs, targets, **options)
    return watcher.table()
