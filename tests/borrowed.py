"""What the process has once and calls borrow, and the tensors that are alive."""

from __future__ import annotations

import gc
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn


def of_process() -> dict[str, Any]:
    """What the process has once and calls borrow, without the states of random generators."""
    return {
        "streams": (sys.stdout, sys.stderr),
        "filters": [*warnings.filters],
        "fused path": torch.backends.mha.get_fastpath_enabled(),
        "collection": gc.isenabled(),
        "dtype": torch.get_default_dtype(),
        "modules": (nn.Module.__call__, nn.Module.__getattr__),
        "path": [*sys.path],
    }


def live_tensors() -> int:
    """Count the tensors with values; torch's export leaves others, without values, in caches of its own."""
    gc.collect()
    return sum(type(value) in (Tensor, nn.Parameter) and not value.is_meta for value in gc.get_objects())
