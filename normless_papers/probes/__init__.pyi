from .channels import (
    ChannelContributions as ChannelContributions,
    ChannelGradients as ChannelGradients,
    ChannelPairs as ChannelPairs,
    channel_gradient_spread as channel_gradient_spread,
    dominance_table as dominance_table,
)
from .class_gradients import (
    LogitGradientMatrix as LogitGradientMatrix,
    classwise_elements as classwise_elements,
    classwise_gradients as classwise_gradients,
    for_each_class as for_each_class,
)
from .divergence import (
    Descent as Descent,
    DivergingUpdate as DivergingUpdate,
    StableRate as StableRate,
    find_divergence as find_divergence,
    largest_stable_rate as largest_stable_rate,
    loss_along as loss_along,
    moments_along as moments_along,
    momentum_sgd as momentum_sgd,
    steepest_descent as steepest_descent,
)
from .gamma_rate import (
    gamma_invariance as gamma_invariance,
    gamma_slopes as gamma_slopes,
    gamma_updates as gamma_updates,
)
from .histograms import (
    ActivationHistograms as ActivationHistograms,
    OutputGradientHistograms as OutputGradientHistograms,
    ParameterGradientHistograms as ParameterGradientHistograms,
    peak_counts as peak_counts,
)
from .network_function import last_stem_layer as last_stem_layer
from .sgd_noise import noise_table as noise_table, per_example_gradients as per_example_gradients
from .stream import ExampleCovariance as ExampleCovariance, StreamVariance as StreamVariance
from .summand_tables import (
    GradientSums as GradientSums,
    ParameterGradients as ParameterGradients,
    SummandDistribution as SummandDistribution,
    gradient_alignment_table as gradient_alignment_table,
    summand_statistics as summand_statistics,
)
from .training_signals import (
    GradientCorrelation as GradientCorrelation,
    WeightDynamics as WeightDynamics,
    gradient_correlation_table as gradient_correlation_table,
)
from .updates import (
    function_update_table as function_update_table,
    scalar_branch_table as scalar_branch_table,
    update_slopes as update_slopes,
    update_terms as update_terms,
    update_trace_table as update_trace_table,
)
