"""Measurements on a network, each with its theory beside it; each name is imported from its file on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normless.lazy import lazy_names

if TYPE_CHECKING:
    from normless.probes.backward.block_gradients import BlockGradients as BlockGradients
    from normless.probes.backward.channel_contributions import ChannelContributions as ChannelContributions
    from normless.probes.backward.channel_contributions import dominance_table as dominance_table
    from normless.probes.backward.channel_gradients import ChannelGradients as ChannelGradients
    from normless.probes.backward.channel_gradients import channel_gradient_spread as channel_gradient_spread
    from normless.probes.backward.channel_pairs import ChannelPairs as ChannelPairs
    from normless.probes.backward.channel_pairs import effective_rank as effective_rank
    from normless.probes.backward.channel_pairs import rank_one_share as rank_one_share
    from normless.probes.backward.classwise import classwise_elements as classwise_elements
    from normless.probes.backward.classwise import classwise_gradients as classwise_gradients
    from normless.probes.backward.classwise import for_each_class as for_each_class
    from normless.probes.backward.gradient_correlation import GradientCorrelation as GradientCorrelation
    from normless.probes.backward.gradient_correlation import gradient_correlation_table as gradient_correlation_table
    from normless.probes.backward.gradient_correlation import (
        parameter_gradient_correlation as parameter_gradient_correlation,
    )
    from normless.probes.backward.gradient_correlation import predicted_gradient_cosines as predicted_gradient_cosines
    from normless.probes.backward.gradient_sums import GradientSums as GradientSums
    from normless.probes.backward.gradient_sums import gradient_sum_table as gradient_sum_table
    from normless.probes.backward.logits import LogitGradientMatrix as LogitGradientMatrix
    from normless.probes.backward.logits import LogitGradients as LogitGradients
    from normless.probes.backward.logits import agreement as agreement
    from normless.probes.backward.logits import logit_gradients as logit_gradients
    from normless.probes.backward.parameter_gradients import ParameterGradients as ParameterGradients
    from normless.probes.backward.parameter_gradients import gradient_alignment_table as gradient_alignment_table
    from normless.probes.backward.summand_distribution import SummandDistribution as SummandDistribution
    from normless.probes.backward.summand_distribution import summand_statistics as summand_statistics
    from normless.probes.dependence.mixing import ExampleMixing as ExampleMixing
    from normless.probes.dependence.mixing import MixingModule as MixingModule
    from normless.probes.dependence.mixing import mixes_examples as mixes_examples
    from normless.probes.forward.covariance import ExampleCovariance as ExampleCovariance
    from normless.probes.forward.covariance import covariance_table as covariance_table
    from normless.probes.forward.histograms import ActivationHistograms as ActivationHistograms
    from normless.probes.forward.histograms import OutputGradientHistograms as OutputGradientHistograms
    from normless.probes.forward.histograms import ParameterGradientHistograms as ParameterGradientHistograms
    from normless.probes.forward.histograms import activation_histograms as activation_histograms
    from normless.probes.forward.histograms import gradient_histograms as gradient_histograms
    from normless.probes.forward.histograms import peak_counts as peak_counts
    from normless.probes.forward.moments import ChannelMoments as ChannelMoments
    from normless.probes.forward.moments import GradientMoments as GradientMoments
    from normless.probes.forward.moments import channel_moments as channel_moments
    from normless.probes.forward.moments import gradient_moments as gradient_moments
    from normless.probes.forward.signal import Signal as Signal
    from normless.probes.forward.signal import signal_table as signal_table
    from normless.probes.forward.theory import BlockMoments as BlockMoments
    from normless.probes.forward.theory import predicted_moments as predicted_moments
    from normless.probes.gammas.gamma_rate import gamma_invariance as gamma_invariance
    from normless.probes.gammas.gamma_rate import gamma_slopes as gamma_slopes
    from normless.probes.gammas.gamma_rate import gamma_updates as gamma_updates
    from normless.probes.gammas.gamma_variance import StreamVariance as StreamVariance
    from normless.probes.gammas.gamma_variance import gamma_variance_table as gamma_variance_table
    from normless.probes.homogeneous.gradient_bounds import InputGradientBounds as InputGradientBounds
    from normless.probes.homogeneous.gradient_bounds import input_bound_table as input_bound_table
    from normless.probes.homogeneous.homogeneity import ParameterSet as ParameterSet
    from normless.probes.homogeneous.homogeneity import candidate_sets as candidate_sets
    from normless.probes.homogeneous.homogeneity import homogeneous_sets as homogeneous_sets
    from normless.probes.homogeneous.homogeneity import input_homogeneity as input_homogeneity
    from normless.probes.homogeneous.homogeneity import sets_of as sets_of
    from normless.probes.homogeneous.set_bounds import SetGradientBounds as SetGradientBounds
    from normless.probes.homogeneous.set_bounds import set_bound_table as set_bound_table
    from normless.probes.matrices.fuss_catalan import density_table as density_table
    from normless.probes.matrices.fuss_catalan import support_edge as support_edge
    from normless.probes.matrices.graded_product import GradedProduct as GradedProduct
    from normless.probes.matrices.graded_product import product_log_singular_values as product_log_singular_values
    from normless.probes.matrices.gradient_descent import descent_table as descent_table
    from normless.probes.matrices.jacobian_spectrum import jacobian_spectrum as jacobian_spectrum
    from normless.probes.matrices.linear_networks import LinearSystems as LinearSystems
    from normless.probes.matrices.linear_networks import linear_systems as linear_systems
    from normless.probes.matrices.lyapunov import condition_growth as condition_growth
    from normless.probes.matrices.lyapunov import lyapunov_exponents as lyapunov_exponents
    from normless.probes.matrices.random_factors import random_factors as random_factors
    from normless.probes.matrices.singular_values import conditioning_table as conditioning_table
    from normless.probes.matrices.singular_values import distance_between as distance_between
    from normless.probes.matrices.singular_values import distance_to_law as distance_to_law
    from normless.probes.matrices.singular_values import extremes_table as extremes_table
    from normless.probes.matrices.singular_values import singular_value_table as singular_value_table
    from normless.probes.measure import PROBES as PROBES
    from normless.probes.measure import Measurements as Measurements
    from normless.probes.measure import probe as probe
    from normless.probes.ride_along import RideAlong as RideAlong
    from normless.probes.ride_along import every as every
    from normless.probes.updates.divergence import Descent as Descent
    from normless.probes.updates.divergence import DivergingUpdate as DivergingUpdate
    from normless.probes.updates.divergence import find_divergence as find_divergence
    from normless.probes.updates.divergence import momentum_sgd as momentum_sgd
    from normless.probes.updates.function_update import function_update_table as function_update_table
    from normless.probes.updates.landscape import loss_along as loss_along
    from normless.probes.updates.landscape import moments_along as moments_along
    from normless.probes.updates.landscape import observe_along as observe_along
    from normless.probes.updates.landscape import steepest_descent as steepest_descent
    from normless.probes.updates.largest_rate import StableRate as StableRate
    from normless.probes.updates.largest_rate import WarmStart as WarmStart
    from normless.probes.updates.largest_rate import largest_stable_rate as largest_stable_rate
    from normless.probes.updates.loss_terms import l2_share as l2_share
    from normless.probes.updates.loss_terms import loss_terms as loss_terms
    from normless.probes.updates.scalar_branch import scalar_branch_table as scalar_branch_table
    from normless.probes.updates.scalar_branch import update_slopes as update_slopes
    from normless.probes.updates.sgd_noise import StepErrors as StepErrors
    from normless.probes.updates.sgd_noise import noise_per_example as noise_per_example
    from normless.probes.updates.sgd_noise import per_example_gradients as per_example_gradients
    from normless.probes.updates.sgd_noise import sgd_noise_table as sgd_noise_table
    from normless.probes.updates.sgd_noise import step_errors as step_errors
    from normless.probes.updates.update_trace import update_terms as update_terms
    from normless.probes.updates.update_trace import update_trace_table as update_trace_table
    from normless.probes.updates.weight_dynamics import WeightDynamics as WeightDynamics
    from normless.probes.watching.observe import observe as observe
    from normless.probes.watching.watcher import Setting as Setting
    from normless.probes.watching.watcher import Watcher as Watcher

_HOME = {
    "BlockGradients": "normless.probes.backward.block_gradients",
    "ChannelContributions": "normless.probes.backward.channel_contributions",
    "dominance_table": "normless.probes.backward.channel_contributions",
    "ChannelGradients": "normless.probes.backward.channel_gradients",
    "channel_gradient_spread": "normless.probes.backward.channel_gradients",
    "ChannelPairs": "normless.probes.backward.channel_pairs",
    "effective_rank": "normless.probes.backward.channel_pairs",
    "rank_one_share": "normless.probes.backward.channel_pairs",
    "classwise_elements": "normless.probes.backward.classwise",
    "classwise_gradients": "normless.probes.backward.classwise",
    "for_each_class": "normless.probes.backward.classwise",
    "GradientCorrelation": "normless.probes.backward.gradient_correlation",
    "gradient_correlation_table": "normless.probes.backward.gradient_correlation",
    "parameter_gradient_correlation": "normless.probes.backward.gradient_correlation",
    "predicted_gradient_cosines": "normless.probes.backward.gradient_correlation",
    "GradientSums": "normless.probes.backward.gradient_sums",
    "gradient_sum_table": "normless.probes.backward.gradient_sums",
    "LogitGradientMatrix": "normless.probes.backward.logits",
    "LogitGradients": "normless.probes.backward.logits",
    "agreement": "normless.probes.backward.logits",
    "logit_gradients": "normless.probes.backward.logits",
    "ParameterGradients": "normless.probes.backward.parameter_gradients",
    "gradient_alignment_table": "normless.probes.backward.parameter_gradients",
    "SummandDistribution": "normless.probes.backward.summand_distribution",
    "summand_statistics": "normless.probes.backward.summand_distribution",
    "ExampleMixing": "normless.probes.dependence.mixing",
    "MixingModule": "normless.probes.dependence.mixing",
    "mixes_examples": "normless.probes.dependence.mixing",
    "ExampleCovariance": "normless.probes.forward.covariance",
    "covariance_table": "normless.probes.forward.covariance",
    "ActivationHistograms": "normless.probes.forward.histograms",
    "OutputGradientHistograms": "normless.probes.forward.histograms",
    "ParameterGradientHistograms": "normless.probes.forward.histograms",
    "activation_histograms": "normless.probes.forward.histograms",
    "gradient_histograms": "normless.probes.forward.histograms",
    "peak_counts": "normless.probes.forward.histograms",
    "ChannelMoments": "normless.probes.forward.moments",
    "GradientMoments": "normless.probes.forward.moments",
    "channel_moments": "normless.probes.forward.moments",
    "gradient_moments": "normless.probes.forward.moments",
    "Signal": "normless.probes.forward.signal",
    "signal_table": "normless.probes.forward.signal",
    "BlockMoments": "normless.probes.forward.theory",
    "predicted_moments": "normless.probes.forward.theory",
    "gamma_invariance": "normless.probes.gammas.gamma_rate",
    "gamma_slopes": "normless.probes.gammas.gamma_rate",
    "gamma_updates": "normless.probes.gammas.gamma_rate",
    "StreamVariance": "normless.probes.gammas.gamma_variance",
    "gamma_variance_table": "normless.probes.gammas.gamma_variance",
    "InputGradientBounds": "normless.probes.homogeneous.gradient_bounds",
    "input_bound_table": "normless.probes.homogeneous.gradient_bounds",
    "ParameterSet": "normless.probes.homogeneous.homogeneity",
    "candidate_sets": "normless.probes.homogeneous.homogeneity",
    "homogeneous_sets": "normless.probes.homogeneous.homogeneity",
    "input_homogeneity": "normless.probes.homogeneous.homogeneity",
    "sets_of": "normless.probes.homogeneous.homogeneity",
    "SetGradientBounds": "normless.probes.homogeneous.set_bounds",
    "set_bound_table": "normless.probes.homogeneous.set_bounds",
    "density_table": "normless.probes.matrices.fuss_catalan",
    "support_edge": "normless.probes.matrices.fuss_catalan",
    "GradedProduct": "normless.probes.matrices.graded_product",
    "product_log_singular_values": "normless.probes.matrices.graded_product",
    "descent_table": "normless.probes.matrices.gradient_descent",
    "jacobian_spectrum": "normless.probes.matrices.jacobian_spectrum",
    "LinearSystems": "normless.probes.matrices.linear_networks",
    "linear_systems": "normless.probes.matrices.linear_networks",
    "condition_growth": "normless.probes.matrices.lyapunov",
    "lyapunov_exponents": "normless.probes.matrices.lyapunov",
    "random_factors": "normless.probes.matrices.random_factors",
    "conditioning_table": "normless.probes.matrices.singular_values",
    "distance_between": "normless.probes.matrices.singular_values",
    "distance_to_law": "normless.probes.matrices.singular_values",
    "extremes_table": "normless.probes.matrices.singular_values",
    "singular_value_table": "normless.probes.matrices.singular_values",
    "Measurements": "normless.probes.measure",
    "PROBES": "normless.probes.measure",
    "probe": "normless.probes.measure",
    "RideAlong": "normless.probes.ride_along",
    "every": "normless.probes.ride_along",
    "Descent": "normless.probes.updates.divergence",
    "DivergingUpdate": "normless.probes.updates.divergence",
    "find_divergence": "normless.probes.updates.divergence",
    "momentum_sgd": "normless.probes.updates.divergence",
    "function_update_table": "normless.probes.updates.function_update",
    "loss_along": "normless.probes.updates.landscape",
    "moments_along": "normless.probes.updates.landscape",
    "observe_along": "normless.probes.updates.landscape",
    "steepest_descent": "normless.probes.updates.landscape",
    "StableRate": "normless.probes.updates.largest_rate",
    "WarmStart": "normless.probes.updates.largest_rate",
    "largest_stable_rate": "normless.probes.updates.largest_rate",
    "l2_share": "normless.probes.updates.loss_terms",
    "loss_terms": "normless.probes.updates.loss_terms",
    "scalar_branch_table": "normless.probes.updates.scalar_branch",
    "update_slopes": "normless.probes.updates.scalar_branch",
    "StepErrors": "normless.probes.updates.sgd_noise",
    "noise_per_example": "normless.probes.updates.sgd_noise",
    "per_example_gradients": "normless.probes.updates.sgd_noise",
    "sgd_noise_table": "normless.probes.updates.sgd_noise",
    "step_errors": "normless.probes.updates.sgd_noise",
    "update_terms": "normless.probes.updates.update_trace",
    "update_trace_table": "normless.probes.updates.update_trace",
    "WeightDynamics": "normless.probes.updates.weight_dynamics",
    "observe": "normless.probes.watching.observe",
    "Setting": "normless.probes.watching.watcher",
    "Watcher": "normless.probes.watching.watcher",
}

__all__ = [*_HOME]


__getattr__, __dir__ = lazy_names(__name__, _HOME)
