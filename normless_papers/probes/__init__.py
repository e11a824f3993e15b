"""Measurements for single figures or tables of the papers, each with its prediction."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless_papers.probes.channels import ChannelContributions as ChannelContributions
    from normless_papers.probes.channels import ChannelGradients as ChannelGradients
    from normless_papers.probes.channels import ChannelPairs as ChannelPairs
    from normless_papers.probes.channels import channel_gradient_spread as channel_gradient_spread
    from normless_papers.probes.channels import dominance_table as dominance_table
    from normless_papers.probes.class_gradients import LogitGradientMatrix as LogitGradientMatrix
    from normless_papers.probes.class_gradients import classwise_elements as classwise_elements
    from normless_papers.probes.class_gradients import classwise_gradients as classwise_gradients
    from normless_papers.probes.class_gradients import for_each_class as for_each_class
    from normless_papers.probes.divergence import Descent as Descent
    from normless_papers.probes.divergence import DivergingUpdate as DivergingUpdate
    from normless_papers.probes.divergence import StableRate as StableRate
    from normless_papers.probes.divergence import find_divergence as find_divergence
    from normless_papers.probes.divergence import largest_stable_rate as largest_stable_rate
    from normless_papers.probes.divergence import loss_along as loss_along
    from normless_papers.probes.divergence import moments_along as moments_along
    from normless_papers.probes.divergence import momentum_sgd as momentum_sgd
    from normless_papers.probes.divergence import steepest_descent as steepest_descent
    from normless_papers.probes.gamma_rate import gamma_invariance as gamma_invariance
    from normless_papers.probes.gamma_rate import gamma_slopes as gamma_slopes
    from normless_papers.probes.gamma_rate import gamma_updates as gamma_updates
    from normless_papers.probes.histograms import ActivationHistograms as ActivationHistograms
    from normless_papers.probes.histograms import OutputGradientHistograms as OutputGradientHistograms
    from normless_papers.probes.histograms import ParameterGradientHistograms as ParameterGradientHistograms
    from normless_papers.probes.histograms import peak_counts as peak_counts
    from normless_papers.probes.jacobian import jacobian_spectrum as jacobian_spectrum
    from normless_papers.probes.network_function import last_stem_layer as last_stem_layer
    from normless_papers.probes.sgd_noise import StepErrors as StepErrors
    from normless_papers.probes.sgd_noise import noise_per_example as noise_per_example
    from normless_papers.probes.sgd_noise import per_example_gradients as per_example_gradients
    from normless_papers.probes.sgd_noise import sgd_noise_table as sgd_noise_table
    from normless_papers.probes.sgd_noise import step_errors as step_errors
    from normless_papers.probes.stream import ExampleCovariance as ExampleCovariance
    from normless_papers.probes.stream import StreamVariance as StreamVariance
    from normless_papers.probes.summand_tables import GradientSums as GradientSums
    from normless_papers.probes.summand_tables import ParameterGradients as ParameterGradients
    from normless_papers.probes.summand_tables import SummandDistribution as SummandDistribution
    from normless_papers.probes.summand_tables import gradient_alignment_table as gradient_alignment_table
    from normless_papers.probes.summand_tables import summand_statistics as summand_statistics
    from normless_papers.probes.training_signals import GradientCorrelation as GradientCorrelation
    from normless_papers.probes.training_signals import WeightDynamics as WeightDynamics
    from normless_papers.probes.training_signals import gradient_correlation_table as gradient_correlation_table
    from normless_papers.probes.training_signals import l2_share as l2_share
    from normless_papers.probes.training_signals import loss_terms as loss_terms
    from normless_papers.probes.updates import function_update_table as function_update_table
    from normless_papers.probes.updates import scalar_branch_table as scalar_branch_table
    from normless_papers.probes.updates import update_slopes as update_slopes
    from normless_papers.probes.updates import update_terms as update_terms
    from normless_papers.probes.updates import update_trace_table as update_trace_table
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
