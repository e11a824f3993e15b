"""Public names that moved; the former ones work with a ``DeprecationWarning``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

_MOVED: dict[str, dict[str, tuple[str, ...]]] = {
    "normless.probes": {
        "normless_papers.probes": (
            "ActivationHistograms",
            "ChannelContributions",
            "ChannelPairs",
            "GradientCorrelation",
            "GradientSums",
            "OutputGradientHistograms",
            "ParameterGradientHistograms",
            "ParameterGradients",
            "StableRate",
            "StepErrors",
            "SummandDistribution",
            "WarmStart",
            "WeightDynamics",
            "activation_histograms",
            "classwise_elements",
            "classwise_gradients",
            "dominance_table",
            "effective_rank",
            "for_each_class",
            "function_update_table",
            "gamma_invariance",
            "gamma_slopes",
            "gamma_updates",
            "gradient_alignment_table",
            "gradient_correlation_table",
            "gradient_histograms",
            "gradient_sum_table",
            "l2_share",
            "largest_stable_rate",
            "loss_along",
            "loss_terms",
            "moments_along",
            "noise_per_example",
            "observe_along",
            "parameter_gradient_correlation",
            "peak_counts",
            "per_example_gradients",
            "predicted_gradient_cosines",
            "rank_one_share",
            "scalar_branch_table",
            "sgd_noise_table",
            "steepest_descent",
            "step_errors",
            "summand_statistics",
            "update_slopes",
            "update_terms",
            "update_trace_table",
        ),
        "normless_papers.theory": (
            "GradedProduct",
            "InputGradientBounds",
            "LinearSystems",
            "ParameterSet",
            "SetGradientBounds",
            "candidate_sets",
            "condition_growth",
            "conditioning_table",
            "density_table",
            "descent_table",
            "distance_between",
            "distance_to_law",
            "extremes_table",
            "homogeneous_sets",
            "input_bound_table",
            "input_homogeneity",
            "jacobian_spectrum",
            "linear_systems",
            "lyapunov_exponents",
            "product_log_singular_values",
            "random_factors",
            "set_bound_table",
            "sets_of",
            "singular_value_table",
            "support_edge",
        ),
    },
}


_RENAMED: dict[str, dict[str, str]] = {
    "normless": {"UnsupportedEdit": "normless.errors.UnsupportedEditError"},
    "normless.errors": {"UnsupportedEdit": "normless.errors.UnsupportedEditError"},
}

# Former functions that returned the table of one probe.
_TABLES: dict[str, dict[str, str]] = {
    "normless.probes": {
        "channel_moments": "activations",
        "covariance_table": "covariance",
        "gamma_variance_table": "stream",
        "gradient_moments": "gradients",
        "logit_gradients": "logits",
        "signal_table": "signal",
    },
}


def with_moved(package: str, current: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package or module that also knows its former names: moved, or replaced by a probe.

    Args:
        package: the package's own name.
        current: its ``__getattr__`` for the names that it has.
    """
    homes = {name: f"{home}.{name}" for home, names in _MOVED.get(package, {}).items() for name in names}
    homes |= _RENAMED.get(package, {})
    tables = _TABLES.get(package, {})

    def find(name: str) -> Any:
        if name in tables:
            probe = tables[name]
            message = f"{package}.{name} is now normless.probe(model, (inputs, targets), [{probe!r}])[{probe!r}]."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return _table_function(probe)
        if name in homes:
            message = f"{package}.{name} moved to {homes[name]}; import it from there."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            home, _, current_name = homes[name].rpartition(".")
            return getattr(import_module(home), current_name)
        if current is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return current(name)

    return find


def _table_function(name: str) -> Callable[..., Any]:
    """The former function (model, inputs, targets or map, …) to the table of a probe."""

    def table(model: Any, inputs: Any, *targets_or_map: Any, residual_map: Any = None, **options: Any) -> Any:
        from normless.probes import PROBES, probe
        from normless.residual import ResidualMap

        targets = next((value for value in targets_or_map if not isinstance(value, ResidualMap)), None)
        found = next((value for value in targets_or_map if isinstance(value, ResidualMap)), residual_map)
        targets = options.pop("targets", targets)
        chosen = "logit_matrix" if options.pop("by_example", False) else name
        passed = {key: options.pop(key) for key in ("loss", "training") if key in options}
        watcher = PROBES[chosen](**options)
        return probe(model, (inputs, targets), [watcher], residual_map=found, **passed)[type(watcher).__name__]

    return table
