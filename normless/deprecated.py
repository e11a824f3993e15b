"""Public names that moved; the former ones work with a ``DeprecationWarning``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

# Names by the package that had them, and by the one that has them now.
_MOVED = {
    "normless.optim": {
        "normless.train": "rate_multiplier set_rate step",
    },
    "normless.probes": {
        "normless_papers.probes": """
            ActivationHistograms ChannelContributions ChannelGradients ChannelPairs Descent DivergingUpdate
            ExampleCovariance GradientCorrelation GradientSums LogitGradientMatrix MakeOptimizer NO_OWNER
            NetworkFunction OutputGradientHistograms ParameterGradientHistograms ParameterGradients
            ParameterOwner StableRate StepErrors StreamVariance SummandDistribution WarmStart WeightDynamics
            activation_histograms as_function channel_gradient_spread classwise_elements classwise_gradients
            dominance_table effective_rank find_divergence for_each_class function_update_table
            gamma_invariance gamma_slopes gamma_updates gradient_alignment_table gradient_correlation_table
            gradient_histograms gradient_sum_table jacobian_spectrum l2_share largest_stable_rate
            last_stem_layer loss_along loss_terms moments_along momentum_sgd noise_per_example observe_along
            parameter_gradient_correlation parameter_owners peak_counts per_example_gradients
            predicted_gradient_cosines rank_one_share require_known scalar_branch_table sgd_noise_table
            steepest_descent step_errors summand_statistics trainable_parameters trained_copy update_slopes
            update_terms update_trace_table
        """,
        "normless_papers.theory": """
            GradedProduct InputGradientBounds LinearSystems ParameterSet SetGradientBounds candidate_sets
            condition_growth conditioning_table density_table descent_table distance_between distance_to_law
            extremes_table homogeneous_sets input_bound_table input_homogeneity linear_systems
            lyapunov_exponents product_log_singular_values random_factors set_bound_table sets_of
            singular_value_table support_edge
        """,
    },
}


# Former functions that measured one probe's table: its class or name, and the arguments by position after the model.
_TABLES = {
    "normless.probes.channel_moments": ("activations", "inputs"),
    "normless.probes.covariance_table": ("covariance", "inputs residual_map"),
    "normless.probes.gamma_variance_table": ("stream", "inputs residual_map"),
    "normless.probes.gradient_moments": ("gradients", "inputs targets"),
    "normless.probes.logit_gradients": ("logits", "inputs targets"),
    "normless.probes.signal_table": ("signal", "inputs residual_map"),
    "normless_papers.probes.activation_histograms": ("ActivationHistograms", "inputs layers channels"),
    "normless_papers.probes.gradient_histograms": ("ParameterGradientHistograms", "inputs targets parameters"),
    "normless_papers.probes.gradient_sum_table": ("GradientSums", "inputs targets layers"),
    "normless_papers.theory.input_bound_table": ("InputGradientBounds", "inputs targets residual_map"),
    "normless_papers.theory.set_bound_table": ("SetGradientBounds", "inputs targets residual_map"),
}
_RENAMED = {
    "normless.UnsupportedEdit": "normless.errors.UnsupportedEditError",
    "normless.errors.UnsupportedEdit": "normless.errors.UnsupportedEditError",
}


def with_moved(package: str, current: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package or module, `current` if it has one, with the names that moved elsewhere."""
    homes = {
        f"{package}.{name}": f"{home}.{name}"
        for home, names in _MOVED.get(package, {}).items()
        for name in names.split()
    } | _RENAMED

    def find(name: str) -> Any:
        former = f"{package}.{name}"
        if former in homes:
            message = f"{former} moved to {homes[former]}; import it from there."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            home, _, current_name = homes[former].rpartition(".")
            return getattr(import_module(home), current_name)
        if current is not None and former in _TABLES:
            probe, positional = _TABLES[former]
            message = f"{former} is replaced by normless.probe(model, (inputs, targets), [{probe}])."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return _table_of(probe if probe.islower() else current(probe), positional.split())
        if current is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return current(name)

    return find


def _table_of(probe: Any, positional: list[str]) -> Callable[..., Any]:
    """A function of a model and a batch that returns the table of one probe."""

    def table(model: Any, *values: Any, **options: Any) -> Any:
        arguments = dict(zip(positional, values, strict=False)) | options
        shared = {name: arguments.pop(name) for name in ("loss", "residual_map", "training") if name in arguments}
        inputs, targets = arguments.pop("inputs"), arguments.pop("targets", None)
        name = "logit_matrix" if arguments.pop("by_example", False) else probe
        probes = import_module("normless.probes")
        watcher = (probes.PROBES[name] if isinstance(name, str) else name)(**arguments)
        probes.observe(model, [watcher], inputs, targets, **shared)
        return watcher.table()

    return table
