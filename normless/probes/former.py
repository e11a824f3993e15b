"""Former functions that returned the table of one probe; they work with a ``DeprecationWarning``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from normless.probes.measure import PROBES, probe
from normless.residual import ResidualMap

# By name, the probe that measures the same.
TABLES = {
    "channel_moments": "activations",
    "covariance_table": "covariance",
    "gamma_variance_table": "stream",
    "gradient_moments": "gradients",
    "logit_gradients": "logits",
    "signal_table": "signal",
}


def table_function(name: str) -> Callable[..., Any]:
    """The former function (model, inputs, targets or map, …) to a table, measured by its probe."""
    if name not in TABLES:
        raise AttributeError(f"module 'normless.probes' has no attribute {name!r}")
    chosen = TABLES[name]
    message = f"normless.probes.{name} is now normless.probe(model, (inputs, targets), [{chosen!r}])[{chosen!r}]."
    warnings.warn(message, DeprecationWarning, stacklevel=3)

    def table(model: Any, inputs: Any, *targets_or_map: Any, residual_map: Any = None, **options: Any) -> Any:
        targets = next((value for value in targets_or_map if not isinstance(value, ResidualMap)), None)
        residual_map = next((value for value in targets_or_map if isinstance(value, ResidualMap)), residual_map)
        targets = options.pop("targets", targets)
        watcher = "logit_matrix" if options.pop("by_example", False) else chosen
        passed = {key: options.pop(key) for key in ("loss", "training") if key in options}
        measured = probe(model, (inputs, targets), [PROBES[watcher](**options)], residual_map=residual_map, **passed)
        return next(iter(measured.tables.values()))

    return table
