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
            "jacobian_spectrum",
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


# Former functions that measured one probe's table: its class or name, and the arguments by position after the model.
_TABLES: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "normless.probes": {
        "channel_moments": ("activations", ("inputs",)),
        "covariance_table": ("covariance", ("inputs", "residual_map")),
        "gamma_variance_table": ("stream", ("inputs", "residual_map")),
        "gradient_moments": ("gradients", ("inputs", "targets")),
        "logit_gradients": ("logits", ("inputs", "targets")),
        "signal_table": ("signal", ("inputs", "residual_map")),
    },
    "normless_papers.probes": {
        "activation_histograms": ("ActivationHistograms", ("inputs", "layers", "channels")),
        "gradient_histograms": ("ParameterGradientHistograms", ("inputs", "targets", "parameters")),
        "gradient_sum_table": ("GradientSums", ("inputs", "targets", "layers")),
    },
    "normless_papers.theory": {
        "input_bound_table": ("InputGradientBounds", ("inputs", "targets", "residual_map")),
        "set_bound_table": ("SetGradientBounds", ("inputs", "targets", "residual_map")),
    },
}

_RENAMED: dict[str, dict[str, str]] = {
    "normless": {"UnsupportedEdit": "normless.errors.UnsupportedEditError"},
    "normless.errors": {"UnsupportedEdit": "normless.errors.UnsupportedEditError"},
}


def with_moved(package: str, current: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package or module that also knows the names that moved elsewhere.

    Args:
        package: the package's own name.
        current: its ``__getattr__`` for the names that it has.
    """
    homes = {name: f"{home}.{name}" for home, names in _MOVED.get(package, {}).items() for name in names}
    homes |= _RENAMED.get(package, {})
    tables = _TABLES.get(package, {})

    def find(name: str) -> Any:
        if name in homes:
            message = f"{package}.{name} moved to {homes[name]}; import it from there."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            home, _, current_name = homes[name].rpartition(".")
            return getattr(import_module(home), current_name)
        if current is not None and name in tables:
            probe, positional = tables[name]
            message = f"{package}.{name} is replaced by normless.probe(model, (inputs, targets), [{probe}])."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return _table_of(probe if probe.islower() else current(probe), positional)
        if current is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return current(name)

    return find


def _table_of(probe: Any, positional: tuple[str, ...]) -> Callable[..., Any]:
    """A function of a model and a batch that returns the table of one probe."""

    def table(model: Any, *values: Any, **options: Any) -> Any:
        given = dict(zip(positional, values, strict=False)) | options
        shared = {name: given.pop(name) for name in ("loss", "residual_map", "training") if name in given}
        inputs, targets = given.pop("inputs"), given.pop("targets", None)
        name = "logit_matrix" if given.pop("by_example", False) else probe
        probes = import_module("normless.probes")
        watcher = (probes.PROBES[name] if isinstance(name, str) else name)(**given)
        probes.observe(model, [watcher], inputs, targets, **shared)
        return watcher.table()

    return table
