"""Measurements for single figures or tables of the papers, each with its prediction."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless_papers.probes.channel_contributions import ChannelContributions as ChannelContributions
    from normless_papers.probes.channel_contributions import dominance_table as dominance_table
    from normless_papers.probes.channel_gradients import ChannelGradients as ChannelGradients
    from normless_papers.probes.channel_gradients import channel_gradient_spread as channel_gradient_spread
    from normless_papers.probes.channel_pairs import ChannelPairs as ChannelPairs
    from normless_papers.probes.class_gradients import classwise_elements as classwise_elements
    from normless_papers.probes.class_gradients import classwise_gradients as classwise_gradients
    from normless_papers.probes.class_gradients import for_each_class as for_each_class
    from normless_papers.probes.covariance import ExampleCovariance as ExampleCovariance
    from normless_papers.probes.divergence import Descent as Descent
    from normless_papers.probes.divergence import DivergingUpdate as DivergingUpdate
    from normless_papers.probes.divergence import StableRate as StableRate
    from normless_papers.probes.divergence import find_divergence as find_divergence
    from normless_papers.probes.divergence import largest_stable_rate as largest_stable_rate
    from normless_papers.probes.divergence import momentum_sgd as momentum_sgd
    from normless_papers.probes.function_update import function_update_table as function_update_table
    from normless_papers.probes.gamma_rate import gamma_invariance as gamma_invariance
    from normless_papers.probes.gamma_rate import gamma_slopes as gamma_slopes
    from normless_papers.probes.gamma_rate import gamma_updates as gamma_updates
    from normless_papers.probes.gamma_variance import StreamVariance as StreamVariance
    from normless_papers.probes.gradient_correlation import GradientCorrelation as GradientCorrelation
    from normless_papers.probes.gradient_correlation import gradient_correlation_table as gradient_correlation_table
    from normless_papers.probes.gradient_sums import GradientSums as GradientSums
    from normless_papers.probes.histograms import ActivationHistograms as ActivationHistograms
    from normless_papers.probes.histograms import OutputGradientHistograms as OutputGradientHistograms
    from normless_papers.probes.histograms import ParameterGradientHistograms as ParameterGradientHistograms
    from normless_papers.probes.histograms import peak_counts as peak_counts
    from normless_papers.probes.jacobian import jacobian_spectrum as jacobian_spectrum
    from normless_papers.probes.logit_matrix import LogitGradientMatrix as LogitGradientMatrix
    from normless_papers.probes.loss_landscape import loss_along as loss_along
    from normless_papers.probes.loss_landscape import moments_along as moments_along
    from normless_papers.probes.loss_landscape import steepest_descent as steepest_descent
    from normless_papers.probes.objective_terms import l2_share as l2_share
    from normless_papers.probes.objective_terms import loss_terms as loss_terms
    from normless_papers.probes.owners import last_stem_layer as last_stem_layer
    from normless_papers.probes.parameter_gradients import ParameterGradients as ParameterGradients
    from normless_papers.probes.parameter_gradients import gradient_alignment_table as gradient_alignment_table
    from normless_papers.probes.scalar_branch import scalar_branch_table as scalar_branch_table
    from normless_papers.probes.scalar_branch import update_slopes as update_slopes
    from normless_papers.probes.sgd_noise import StepErrors as StepErrors
    from normless_papers.probes.sgd_noise import noise_per_example as noise_per_example
    from normless_papers.probes.sgd_noise import per_example_gradients as per_example_gradients
    from normless_papers.probes.sgd_noise import sgd_noise_table as sgd_noise_table
    from normless_papers.probes.sgd_noise import step_errors as step_errors
    from normless_papers.probes.summand_distribution import SummandDistribution as SummandDistribution
    from normless_papers.probes.summand_distribution import summand_statistics as summand_statistics
    from normless_papers.probes.update_trace import update_terms as update_terms
    from normless_papers.probes.update_trace import update_trace_table as update_trace_table
    from normless_papers.probes.weight_dynamics import WeightDynamics as WeightDynamics
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
